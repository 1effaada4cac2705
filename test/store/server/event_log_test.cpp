// SPDX-License-Identifier: Apache-2.0
#include "store/server/event_log.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace pl::store_test {
namespace {

TEST(event_log, NamesAreJsonStringsOfTheirCharacters) {
  for (const std::string name : {"plain", "a\"b\\c",
                                 "gr\xc3\xb6\xc3\x9f"
                                 "e",
                                 "\xf0\x9f\x98\x80", ""})
    EXPECT_EQ(nlohmann::json::parse(store_server::json_quoted(name)).get<std::string>(), name);
  EXPECT_EQ(store_server::json_quoted("a\n\x7f\xff"), "\"a\\u000a\\u007f\\u00ff\"");
  EXPECT_EQ(store_server::json_quoted("\xc3("), "\"\\u00c3(\"") << "cut off";
}

}  // namespace
}  // namespace pl::store_test
