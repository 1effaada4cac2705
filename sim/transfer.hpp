// SPDX-License-Identifier: Apache-2.0
// Moving bytes between resolved operands; shared by copies, memsets and kernels' launch paths.
#pragma once

#include <vector>

#include "sim/store_buffer.hpp"

namespace pl::sim {

// Both sides cover the same number of bytes. Words of up to 8 aligned bytes move as one atomic access, so that a
// completion word written by a copy can be polled. With a seed, larger copies are cut up and done in shuffled order;
// with a delay, copies to another device or the host arrive in parts.
void move_bytes(const std::vector<piece>& destination, const std::vector<piece>& source);

// Repeats a pattern of 1, 2 or 4 bytes over a resolved operand.
void fill_bytes(const std::vector<piece>& destination, std::uint32_t pattern, std::size_t pattern_bytes);

}  // namespace pl::sim
