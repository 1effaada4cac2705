// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/arguments.hpp"

#include <gtest/gtest.h>

#include "tools/common/tool.hpp"
#include "tools/common/word_list.hpp"

namespace pl::async {
namespace {

TEST(Arguments, ListsAreSplitAtCommas) {
  EXPECT_EQ(tools::split_list("a,b,,c"), (std::vector<std::string>{"a", "b", "", "c"}));
  EXPECT_EQ(sizes_in("-s", "8,4K,1M"), (std::vector<std::size_t>{8, 4096, 1 << 20}));
  EXPECT_EQ(times_in("-k", "0,2.5,200"), (std::vector<std::uint64_t>{0, 2500, 200'000}));
  EXPECT_EQ(integers_in("-n", "2,16384", 2, 16384), (std::vector<int>{2, 16384}));
}

TEST(Arguments, WhatIsOutOfRangeOrNoNumberIsRefused) {
  for (const char* bad : {"", "0", "12", "8,", "x", "2G", "-8"})
    EXPECT_THROW(sizes_in("-s", bad), tools::tool_failure) << bad;
  for (const char* bad : {"", "-1", "1e7", "2us", "nan"}) EXPECT_THROW(times_in("-k", bad), tools::tool_failure) << bad;
  for (const char* bad : {"", "1", "16385", "4 ", "0x"})
    EXPECT_THROW(integers_in("-n", bad, 2, 16384), tools::tool_failure) << bad;
}

TEST(Arguments, TheOptionIsNamed) {
  try {
    integers_in("--points", "7,one", 0, 9);
    FAIL();
  } catch (const tools::tool_failure& failure) {
    EXPECT_STREQ(failure.what(), "--points: \"one\" is not a number from 0 to 9");
  }
}

}  // namespace
}  // namespace pl::async
