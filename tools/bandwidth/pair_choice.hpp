// SPDX-License-Identifier: Apache-2.0
// --pair and --targetNumPairs: which pairs of GPUs (or of processes) the tests between pairs measure.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "base/status.hpp"

namespace pl::bandwidth {

class gpu_set;

constexpr const char* kNotChosen = "not one of the pairs that --pair or --targetNumPairs chose";

struct pair_choice {
  bool is_limited = false;                // false: every pair
  std::set<std::pair<int, int>> ordered;  // [row, column]
  bool includes(int row, int column) const { return !is_limited || ordered.contains({row, column}); }
};

// `wanted` of the ordered pairs of `count` ends: first so that every end takes part in one while pairs are left, then any.
// The same for the same seed, so that processes agree without a word. wanted < 0: all.
pair_choice sample_pairs(int count, std::int64_t wanted, std::uint64_t seed);

// Both directions between the GPUs of these UUIDs ("GPU-9a6efb31-..."). EINVAL, with the existing UUIDs: not a UUID,
// both the same, or no visible GPU has it.
result<pair_choice> choose_pair(gpu_set& gpus, const std::string& first, const std::string& second);

}  // namespace pl::bandwidth
