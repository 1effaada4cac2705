// SPDX-License-Identifier: Apache-2.0
// The linked list of a pointer chase, and the order of scattered blocks. Arithmetic only.
#pragma once

#include <cstdint>
#include <vector>

namespace pl::bandwidth {

// For `lines` lines: successor of each, one cycle through all of them. Random by Sattolo's algorithm, or the next line.
std::vector<std::uint32_t> chase_order(std::uint32_t lines, std::uint64_t seed, bool sequential);

// The numbers of `blocks` (1 or more) blocks in lists that are copied one after the other, each in scattered order. No long
// list has two neighbours, which a copier that sorts would join to one large copy.
std::vector<std::vector<std::uint64_t>> scattered_lists(std::uint64_t blocks);

}  // namespace pl::bandwidth
