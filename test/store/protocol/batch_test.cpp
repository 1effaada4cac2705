// SPDX-License-Identifier: Apache-2.0
#include "store/protocol/batch.hpp"

#include <gtest/gtest.h>

#include <cerrno>

namespace pl::store_protocol {
namespace {

std::vector<batch_item> some_items(batch_memory memory) {
  batch_item one, two;
  one.key = "key", one.room = 17, one.user_flags = 3, one.ttl_ms = 9;
  one.only = {condition::if_version, 12};
  two.key = std::string_view("\0\n", 2), two.room = UINT64_MAX;
  if (memory == batch_memory::host) two.value = "value";
  else one.offset = 4096, two.offset = UINT64_MAX - 1;
  return {one, two};
}

class Lists : public testing::TestWithParam<batch_memory> {};

TEST_P(Lists, ComeBackAsTheyWere) {
  std::string body;
  for (const batch_item& one : some_items(GetParam())) append(body, one, GetParam());
  const auto got = decode_batch(body, GetParam());
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_EQ(*got, some_items(GetParam()));
}

TEST_P(Lists, CutOffAnywhereTheyAreRefused) {
  std::string body;
  const auto items = some_items(GetParam());
  append(body, items[0], GetParam());
  const std::size_t first = body.size();
  append(body, items[1], GetParam());
  for (std::size_t bytes = 0; bytes < body.size(); ++bytes) {
    const auto got = decode_batch(std::string_view(body).substr(0, bytes), GetParam());
    if (bytes == 0 || bytes == first) EXPECT_TRUE(got) << bytes;
    else EXPECT_EQ(got.code(), EPROTO) << bytes;
  }
}

TEST_P(Lists, HaveALimit) {
  std::string body;
  for (std::size_t i = 0; i <= kMaxBatchItems; ++i) append(body, some_items(GetParam())[0], GetParam());
  EXPECT_EQ(decode_batch(body, GetParam()).code(), EMSGSIZE);
}

INSTANTIATE_TEST_SUITE_P(Memory, Lists, testing::Values(batch_memory::host, batch_memory::device),
                         [](const auto& info) { return info.param == batch_memory::host ? "host" : "device"; });

TEST(batch_of_device_memory, HasNoBytes) {
  std::string body;
  batch_item one;
  one.key = "key", one.value = "value";
  append(body, one, batch_memory::device);
  EXPECT_EQ(decode_batch(body, batch_memory::device).code(), EPROTO);
}

}  // namespace
}  // namespace pl::store_protocol
