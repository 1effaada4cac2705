// SPDX-License-Identifier: Apache-2.0
// That the CPU's V-cycles solve the equation, at a rate that does not depend on the number of points.
#include "tools/triggered/multigrid_field.hpp"

#include <gtest/gtest.h>

namespace pl::async {
namespace {

TEST(MultigridField, EachCycleTakesTwoThirdsOfTheResidualWhateverTheSize) {
  for (const int n : {2, 8, 64}) {
    multigrid_domain whole(2, 1, n);
    for (int cycle = 1; cycle <= 6; ++cycle) {
      const double before = whole.residual_norm();
      whole.cycle();
      EXPECT_LT(whole.residual_norm(), before / 3) << n << " points, cycle " << cycle;
    }
  }
}

TEST(MultigridField, BlocksAreThoseOfTheWholeDomain) {
  constexpr int kPoints = 4;
  multigrid_domain whole(3, 2, kPoints);
  whole.cycle();
  std::vector<double> rows;
  // A row of the domain is the rows of three blocks.
  for (int y = 0; y < 2 * kPoints; ++y)
    for (int x = 0; x < 3; ++x) {
      const auto block = whole.block({3, 2, y / kPoints * 3 + x, kPoints});
      ASSERT_EQ(block.size(), std::size_t{kPoints * kPoints});
      rows.insert(rows.end(), block.begin() + y % kPoints * kPoints, block.begin() + (y % kPoints + 1) * kPoints);
    }
  EXPECT_EQ(rows, whole.whole());
}

TEST(MultigridField, ACycleHasAnEvenNumberOfExchanges) {
  for (int n = kCoarsest; n <= 8192; n *= 2) {
    EXPECT_TRUE(is_multigrid_size(n));
    EXPECT_EQ(exchanges_of_cycle(n) % 2, 0) << n;
    EXPECT_FALSE(is_multigrid_size(n + 1));
  }
  EXPECT_EQ(exchanges_of_cycle(256), 7 * 5 + 9);
  EXPECT_FALSE(is_multigrid_size(1));
}

}  // namespace
}  // namespace pl::async
