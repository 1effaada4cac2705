// SPDX-License-Identifier: Apache-2.0
// The CPU's field, against the whole domain computed in the plainest way.
#include "tools/triggered/stencil_field.hpp"

#include <gtest/gtest.h>

#include <array>
#include <utility>

namespace pl::async {
namespace {

class domain {
 public:
  domain(int width, int height) : width_(width), height_(height) {
    for (int y = -1; y <= height; ++y)
      for (int x = -1; x <= width; ++x) values_.push_back(first_value(x, y));
  }
  void step() {
    auto next = values_;
    for (int y = 0; y < height_; ++y)
      for (int x = 0; x < width_; ++x)
        next[index(x, y)] = 0.25 * ((at(x, y - 1) + at(x, y + 1)) + (at(x - 1, y) + at(x + 1, y)));
    values_ = std::move(next);
  }
  double at(int x, int y) const { return values_[index(x, y)]; }

 private:
  std::size_t index(int x, int y) const { return static_cast<std::size_t>((y + 1) * (width_ + 2) + x + 1); }
  int width_, height_;
  std::vector<double> values_;
};

TEST(StencilField, BlocksAreThoseOfTheWholeDomain) {
  for (const auto& [gx, gy, n] : {std::array{2, 1, 4}, std::array{1, 2, 5}, std::array{3, 2, 3}, std::array{2, 2, 1}}) {
    domain whole(gx * n, gy * n);
    for (int steps = 0; steps <= 9; ++steps, whole.step())
      for (int rank = 0; rank < gx * gy; ++rank) {
        const block_place place{gx, gy, rank, n};
        const auto block = block_after(place, steps);
        ASSERT_EQ(block.size(), static_cast<std::size_t>(n * n));
        for (int y = 0; y < n; ++y)
          for (int x = 0; x < n; ++x)
            ASSERT_EQ(block[static_cast<std::size_t>(y * n + x)], whole.at(place.x() * n + x, place.y() * n + y))
                << gx << "x" << gy << " rank " << rank << " after " << steps << " at " << x << ", " << y;
      }
  }
}

TEST(StencilField, GhostsAreTheNeighboursFirstEdges) {
  const block_place place{3, 3, 4, 4};
  const auto ghosts = first_ghosts(place);
  ASSERT_EQ(ghosts.size(), 16u);
  for (int i = 0; i < 4; ++i) {
    const auto index = static_cast<std::size_t>(i);
    EXPECT_EQ(ghosts[index], first_block({3, 3, 1, 4})[12 + index]);
    EXPECT_EQ(ghosts[4 + index], first_block({3, 3, 7, 4})[index]);
    EXPECT_EQ(ghosts[8 + index], first_block({3, 3, 3, 4})[4 * index + 3]);
    EXPECT_EQ(ghosts[12 + index], first_block({3, 3, 5, 4})[4 * index]);
  }
}

TEST(StencilField, NeighboursAgree) {
  for (int rank = 0; rank < 6; ++rank)
    for (int i = 0; i < kSides; ++i) {
      const auto direction = static_cast<side>(i);
      const int other = block_place{3, 2, rank, 1}.neighbour(direction);
      if (other < 0) continue;
      EXPECT_EQ((block_place{3, 2, other, 1}.neighbour(opposite(direction))), rank);
    }
  EXPECT_EQ((block_place{3, 2, 0, 1}.neighbour(up)), -1);
  EXPECT_EQ((block_place{3, 2, 0, 1}.neighbour(left)), -1);
  EXPECT_EQ((block_place{3, 2, 0, 1}.neighbour(right)), 1);
  EXPECT_EQ((block_place{3, 2, 0, 1}.neighbour(down)), 3);
}

TEST(StencilField, TheWorkOfAReferenceIsCounted) {
  // In the middle of 3 x 3 blocks of 4: 2 steps need 6 x 6 and then 4 x 4 points.
  EXPECT_EQ(reference_work({3, 3, 4, 4}, 2), 52u);
  EXPECT_EQ(reference_work({2, 1, 0, 4}, 100), 32u * 96 + 28 + 24 + 20 + 16);
}

}  // namespace
}  // namespace pl::async
