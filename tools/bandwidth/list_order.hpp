// SPDX-License-Identifier: Apache-2.0
// The linked list of a pointer chase. Arithmetic only.
#pragma once

#include <cstdint>
#include <vector>

namespace pl::bandwidth {

// For `lines` lines: successor of each, one cycle through all of them. Random by Sattolo's algorithm, or the next line.
std::vector<std::uint32_t> chase_order(std::uint32_t lines, std::uint64_t seed, bool sequential);

}  // namespace pl::bandwidth
