// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/pair_choice.hpp"

#include <algorithm>
#include <cerrno>
#include <random>
#include <vector>

#include "base/text.hpp"
#include "tools/bandwidth/gpu_set.hpp"

namespace pl::bandwidth {
namespace {

// Its own, as std::shuffle's order is not the same in every library, and processes must agree.
void shuffle(std::vector<std::pair<int, int>>& pairs, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::size_t left = pairs.size(); left > 1; --left) std::swap(pairs[left - 1], pairs[random() % left]);
}

int find_uuid(gpu_set& gpus, const std::string& uuid) {
  for (int gpu = 0; gpu < gpus.count(); ++gpu)
    if (gpus.uuid(gpu) == uuid) return gpu;
  return -1;
}

}  // namespace

pair_choice sample_pairs(int count, std::int64_t wanted, std::uint64_t seed) {
  std::vector<std::pair<int, int>> all;
  for (int row = 0; row < count; ++row)
    for (int column = 0; column < count; ++column)
      if (row != column) all.emplace_back(row, column);
  if (wanted < 0 || static_cast<std::size_t>(wanted) >= all.size()) return {};
  shuffle(all, seed);
  pair_choice out;
  out.is_limited = true;
  std::vector<bool> covered(static_cast<std::size_t>(count));
  // Pairs that cover two new ends first, then those that cover one, then the rest.
  for (const int fresh_ends : {2, 1, 0})
    for (const auto& [row, column] : all) {
      if (out.ordered.size() == static_cast<std::size_t>(wanted)) return out;
      const auto r = static_cast<std::size_t>(row), c = static_cast<std::size_t>(column);
      if (int{!covered[r]} + int{!covered[c]} < fresh_ends || out.ordered.contains({row, column})) continue;
      out.ordered.insert({row, column});
      covered[r] = covered[c] = true;
    }
  return out;
}

result<pair_choice> choose_pair(gpu_set& gpus, const std::string& first, const std::string& second) {
  int found[2] = {-1, -1};
  const std::string* const asked[2] = {&first, &second};
  for (int i = 0; i < 2; ++i) {
    found[i] = find_uuid(gpus, *asked[i]);
    if (found[i] >= 0) continue;
    std::string known;
    for (int gpu = 0; gpu < gpus.count(); ++gpu)
      known += format("%s GPU %d is %s", gpu == 0 ? "" : ",", gpu, gpus.uuid(gpu).c_str());
    return failure{EINVAL, format("--pair: no visible GPU has the UUID \"%s\";%s", asked[i]->c_str(), known.c_str())};
  }
  if (found[0] == found[1]) return failure{EINVAL, "--pair: both UUIDs are those of one GPU: name two"};
  return pair_choice{true, {{found[0], found[1]}, {found[1], found[0]}}};
}

}  // namespace pl::bandwidth
