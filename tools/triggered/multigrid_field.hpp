// SPDX-License-Identifier: Apache-2.0
// Poisson's equation on the whole domain by V-cycles, on the CPU: the same operations in the same order as the kernels', so
// equal bit by bit.
//
// 4 u - (the four neighbours) = b on n x n points a block; u = 0 on the domain's walls, which lie half a width from the
// points beside them, so that a point beyond would be the negative of the one before; u = 0 at first, b by first_value().
// Each level has half as many points along an edge, down to kCoarsest a block. The right side of a coarser level is the sum
// of four residuals; its answer is added to each of the four points, interpolated from it and its two nearest neighbours.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/triggered/block_place.hpp"

namespace pl::async {

// Of a cycle. An even number of exchanges, because halos have two places that are used in turn: five on each level but the
// coarsest, an odd or even number there.
constexpr int kCoarsest = 2;  // points along an edge of a block
constexpr int kSmoothsBefore = 2, kSmoothsAfter = 2;
constexpr int multigrid_levels(int n) { return n <= kCoarsest ? 1 : 1 + multigrid_levels(n / 2); }
constexpr int coarsest_smooths(int n) { return 8 + (multigrid_levels(n) - 1) % 2; }
constexpr int exchanges_of_cycle(int n) {
  return (multigrid_levels(n) - 1) * (kSmoothsBefore + 1 + kSmoothsAfter) + coarsest_smooths(n);
}
constexpr bool is_multigrid_size(int n) { return n >= kCoarsest && (n & (n - 1)) == 0; }

class multigrid_domain {
 public:
  multigrid_domain(int gx, int gy, int n);  // n: a power of two, at least kCoarsest
  void cycle() { cycle_at(0); }
  const std::vector<double>& whole() const { return levels_.front().field; }  // row by row
  std::vector<double> block(const block_place& place) const;
  double residual_norm() const;  // the root of the mean square
  std::uint64_t points() const { return levels_.front().field.size(); }

 private:
  struct level {
    int width = 0, height = 0, n = 0;
    std::vector<double> field, right;
    double at(int x, int y) const { return field[static_cast<std::size_t>(y * width + x)]; }
    double up_of(int x, int y) const { return y != 0 ? at(x, y - 1) : -at(x, y); }
    double down_of(int x, int y) const { return y != height - 1 ? at(x, y + 1) : -at(x, y); }
    double left_of(int x, int y) const { return x != 0 ? at(x - 1, y) : -at(x, y); }
    double right_of(int x, int y) const { return x != width - 1 ? at(x + 1, y) : -at(x, y); }
    double sum_of_neighbours(int x, int y) const { return (up_of(x, y) + down_of(x, y)) + (left_of(x, y) + right_of(x, y)); }
    // At the quarter of the point where the finer level's point (x, y) lies; exact for linear functions.
    double between(int x, int y) const {
      const double vertical = y % 2 == 0 ? up_of(x / 2, y / 2) : down_of(x / 2, y / 2);
      const double horizontal = x % 2 == 0 ? left_of(x / 2, y / 2) : right_of(x / 2, y / 2);
      return 0.5 * at(x / 2, y / 2) + 0.25 * (vertical + horizontal);
    }
    double residual(int x, int y) const {
      return (right[static_cast<std::size_t>(y * width + x)] + sum_of_neighbours(x, y)) - 4 * at(x, y);
    }
    void smooth(int count, bool is_from_zero);
  };
  void cycle_at(std::size_t depth);
  std::vector<level> levels_;
};

}  // namespace pl::async
