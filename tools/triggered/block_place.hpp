// SPDX-License-Identifier: Apache-2.0
// Where a rank's block lies in the domain: gx x gy blocks of n x n points, row by row.
#pragma once

namespace pl::async {

enum side : int { up = 0, down = 1, left = 2, right = 3 };
constexpr int kSides = 4;
constexpr side opposite(side direction) { return static_cast<side>(direction ^ 1); }

struct block_place {
  int gx = 1, gy = 1;  // grid of blocks
  int rank = 0;        // row by row
  int n = 0;           // points along an edge
  int x() const { return rank % gx; }
  int y() const { return rank / gx; }
  // Rank of the block on that side, or -1 at the edge of the domain.
  int neighbour(side direction) const {
    const int to_x = x() + (direction == right) - (direction == left), to_y = y() + (direction == down) - (direction == up);
    return to_x < 0 || to_x >= gx || to_y < 0 || to_y >= gy ? -1 : to_y * gx + to_x;
  }
};

}  // namespace pl::async
