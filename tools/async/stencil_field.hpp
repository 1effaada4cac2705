// SPDX-License-Identifier: Apache-2.0
// The field of the stencil benchmark on the CPU: where it starts, and what it is after some steps.
//
// The whole domain is gx x gy blocks of n x n points. Outside of it the field keeps its first values.
#pragma once

#include <cstdint>
#include <vector>

namespace pl::async {

enum side : int { up = 0, down = 1, left = 2, right = 3 };
constexpr int kSides = 4;
constexpr side opposite(side of) { return static_cast<side>(of ^ 1); }

struct block_place {
  int gx = 1, gy = 1;  // grid of blocks
  int rank = 0;        // row by row
  int n = 0;           // points along an edge
  int x() const { return rank % gx; }
  int y() const { return rank / gx; }
  // Rank of the block on that side, or -1 at the edge of the domain.
  int neighbour(side at) const;
};

// First value at a point of the domain, or around it: in [0, 1), any two neighbours differ.
double first_value(std::int64_t x, std::int64_t y);
// First values of the block, row by row.
std::vector<double> first_block(const block_place& at);
// What lies around the block at first: four rows of n, by side.
std::vector<double> first_ghosts(const block_place& at);

// The block after `steps`, computed from the points that can have an influence on it: (n + 2 steps)^2 at most. The same
// operations in the same order as the kernel's, so equal bit by bit.
std::vector<double> block_after(const block_place& at, int steps);
// Updates of points that block_after makes.
std::uint64_t reference_work(const block_place& at, int steps);

}  // namespace pl::async
