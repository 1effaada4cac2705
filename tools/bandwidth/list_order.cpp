// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/list_order.hpp"

#include <algorithm>
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

std::vector<std::vector<std::uint64_t>> scattered_lists(std::uint64_t blocks) {
  // Half of a short list might be left to the CPU, which does not sort it.
  constexpr std::uint64_t kFewBlocks = 256;
  const std::uint64_t lists = blocks < kFewBlocks ? 1 : 2;
  std::vector<std::vector<std::uint64_t>> out;
  for (std::uint64_t first = 0; first < lists; ++first) {
    const std::uint64_t count = (blocks - first + lists - 1) / lists;
    // Every block once: the step has no factor in common with their number. Near the golden section, so that it never leads
    // to the next block, nor back.
    std::uint64_t step = std::max<std::uint64_t>(1, count * 5 / 13);
    while (std::gcd(step, count) != 1) ++step;
    auto& list = out.emplace_back();
    for (std::uint64_t i = 0; i < count; ++i) list.push_back(i * step % count * lists + first);
  }
  return out;
}

}  // namespace pl::bandwidth
