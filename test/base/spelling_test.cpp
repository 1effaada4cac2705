// SPDX-License-Identifier: Apache-2.0
#include "base/spelling.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace pl {
namespace {

TEST(Spelling, DistanceCountsLettersAndSwaps) {
  EXPECT_EQ(spelling_distance("copy", "copy"), 0u);
  EXPECT_EQ(spelling_distance("", "abc"), 3u);
  EXPECT_EQ(spelling_distance("copi", "copy"), 1u);
  EXPECT_EQ(spelling_distance("cpoy", "copy"), 1u);
  EXPECT_EQ(spelling_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(spelling_distance("abc", "cab"), 2u);
}

TEST(Spelling, TheNearestIsNamedAndTheFarIsNot) {
  const std::vector<std::string> known = {"bandwidth", "copy", "copybw", "copylat", "doctor", "env", "p2p"};
  EXPECT_EQ(nearest_word("bandwith", known), "bandwidth");
  EXPECT_EQ(nearest_word("BANDWIDTH", known), "bandwidth");
  EXPECT_EQ(nearest_word("docter", known), "doctor");
  EXPECT_EQ(nearest_word("cpoy", known), "copy");
  EXPECT_EQ(nearest_word("emv", known), "env");
  EXPECT_EQ(nearest_word("band", known), "bandwidth") << "the beginning of one only";
  for (const char* far : {"", "x", "zebra", "transmogrify", "qq"}) EXPECT_EQ(nearest_word(far, known), "") << far;
  EXPECT_EQ(nearest_word(std::string(1000, 'x'), known), "");
}

}  // namespace
}  // namespace pl
