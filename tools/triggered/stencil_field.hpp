// SPDX-License-Identifier: Apache-2.0
// The field of the stencil benchmark on the CPU: where it starts, and what it is after some steps.
//
// Outside of the domain the field keeps its first values.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/triggered/block_place.hpp"

namespace pl::async {

// First value at a point of the domain, or around it: in [0, 1), any two neighbours differ.
double first_value(std::int64_t x, std::int64_t y);
// First values of the block, row by row.
std::vector<double> first_block(const block_place& place);
// The initial surroundings of the block: four rows of n, by side.
std::vector<double> first_ghosts(const block_place& place);

// The block after `steps`, computed from the points that can have an influence on it: (n + 2 steps)^2 at most. The same
// operations in the same order as the kernel's, so equal bit by bit.
std::vector<double> block_after(const block_place& place, int steps);
// Updates of points that block_after makes.
std::uint64_t reference_work(const block_place& place, int steps);

}  // namespace pl::async
