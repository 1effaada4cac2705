// SPDX-License-Identifier: Apache-2.0
#include "base/checked_math.hpp"

#include <gtest/gtest.h>

namespace pl {
namespace {

TEST(CheckedMath, ReportsOverflow) {
  EXPECT_EQ(checked_add(UINT64_MAX - 1, 1), UINT64_MAX);
  EXPECT_FALSE(checked_add(UINT64_MAX, 1));
  EXPECT_FALSE(checked_mul(std::uint64_t{1} << 40, std::uint64_t{1} << 40));
  EXPECT_EQ(checked_align_up(1, 4096), 4096u);
  EXPECT_EQ(checked_align_up(4096, 4096), 4096u);
  EXPECT_FALSE(checked_align_up(UINT64_MAX - 10, 4096));
}

TEST(CheckedMath, RoundsRangesOutwards) {
  const auto range = round_outwards({0x10001, 0xffff}, kGpuPageBytes);
  ASSERT_TRUE(range);
  EXPECT_EQ(range->begin, 0x10000u);
  EXPECT_EQ(range->size_bytes, 0x10000u);
  EXPECT_FALSE(round_outwards({UINT64_MAX - 5, 5}, 4096));
}

TEST(CheckedMath, ContainsSurvivesExtremes) {
  const address_range outer{100, 50};
  EXPECT_TRUE(outer.contains({100, 50}));
  EXPECT_TRUE(outer.contains({149, 1}));
  EXPECT_TRUE(outer.contains({150, 0}));
  EXPECT_FALSE(outer.contains({99, 1}));
  EXPECT_FALSE(outer.contains({149, 2}));
  EXPECT_FALSE(outer.contains({120, UINT64_MAX}));
}

}  // namespace
}  // namespace pl
