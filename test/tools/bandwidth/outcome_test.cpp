// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/outcome.hpp"

#include <gtest/gtest.h>

namespace pl::bandwidth {
namespace {

TEST(SampleStatistics, OfNothingIsZero) {
  const auto none = describe({});
  EXPECT_EQ(none.median, 0);
  EXPECT_EQ(none.ci95_half_width, 0);
}

TEST(SampleStatistics, OneSampleHasNoSpread) {
  const auto one = describe({5});
  EXPECT_EQ(one.median, 5);
  EXPECT_EQ(one.coefficient_of_variation, 0);
  EXPECT_EQ(one.ci95_half_width, 0);
}

TEST(SampleStatistics, MedianOfAnEvenCountIsTheMiddle) { EXPECT_EQ(describe({4, 1, 3, 2}).median, 2.5); }

// By hand: mean 10, sample stddev 1, n 3: t(2) = 4.303, half width 4.303 / sqrt(3).
TEST(SampleStatistics, ConfidenceIntervalByStudentsT) {
  const auto some = describe({9, 10, 11});
  EXPECT_DOUBLE_EQ(some.mean, 10);
  EXPECT_DOUBLE_EQ(some.stddev, 1);
  EXPECT_DOUBLE_EQ(some.coefficient_of_variation, 0.1);
  EXPECT_NEAR(some.ci95_half_width, 2.4844, 1e-4);
}

cell cell_of(cell_state state, double value) {
  cell out;
  out.state = state;
  out.value = value;
  return out;
}

TEST(Matrix, SumCountsMeasuredCellsOnly) {
  matrix one;
  one.cells = {{cell_of(cell_state::measured, 2), cell_of(cell_state::not_applicable, 7)},
               {cell_of(cell_state::mismatch, 5), cell_of(cell_state::measured, 0.5)}};
  EXPECT_DOUBLE_EQ(sum_of(one), 2.5);
}

}  // namespace
}  // namespace pl::bandwidth
