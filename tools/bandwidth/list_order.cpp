// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/list_order.hpp"

#include <numeric>
#include <utility>

#include "tools/bandwidth/pattern_hash.hpp"

namespace pl::bandwidth {

std::vector<std::uint32_t> chase_order(std::uint32_t lines, std::uint64_t seed, bool sequential) {
  std::vector<std::uint32_t> next(lines);
  if (sequential) {
    for (std::uint32_t i = 0; i < lines; ++i) next[i] = (i + 1) % lines;
    return next;
  }
  std::iota(next.begin(), next.end(), 0u);
  for (std::uint32_t i = lines; i > 1; --i) {
    const auto other =
        static_cast<std::uint32_t>(pattern_word(i, seed) % (i - 1));  // never itself: that is what makes one cycle
    std::swap(next[i - 1], next[other]);
  }
  return next;
}

}  // namespace pl::bandwidth
