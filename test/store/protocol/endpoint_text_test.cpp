// SPDX-License-Identifier: Apache-2.0
#include "store/protocol/endpoint_text.hpp"

#include <gtest/gtest.h>

namespace pl {
namespace {

TEST(EndpointText, HostAndPort) {
  const std::pair<const char*, std::pair<std::string, std::string>> cases[] = {
      {"localhost:7070", {"localhost", "7070"}}, {"[::1]:7070", {"::1", "7070"}},   {":7070", {"", "7070"}},
      {"127.0.0.1:0", {"127.0.0.1", "0"}},       {"host:65535", {"host", "65535"}},
  };
  for (const auto& [text, parts] : cases) {
    const auto got = split_endpoint(text);
    ASSERT_TRUE(got) << text << ": " << got.error().message;
    EXPECT_EQ(*got, parts) << text;
  }
}

TEST(EndpointText, PortsThatAreNone) {
  for (const char* text :
       {"", "host", "host:", "host:65536", "host:99999", "host:-1", "host:http", "host:70 70", "host:4294974366"}) {
    const auto got = split_endpoint(text);
    ASSERT_FALSE(got) << text;
    EXPECT_EQ(got.code(), EINVAL);
    EXPECT_NE(got.error().message.find(text), std::string::npos) << got.error().message;
  }
}

}  // namespace
}  // namespace pl
