// SPDX-License-Identifier: Apache-2.0
#include "base/spelling.hpp"

#include <algorithm>
#include <cctype>
#include <vector>

namespace pl {
namespace {

constexpr std::size_t kMaxLetters = 64;  // longer words are no names of ours, and the table grows quadratically
constexpr std::size_t kMinPrefix = 3;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& letter : out) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return out;
}

std::string only_one_with_prefix(const std::string& wanted, std::span<const std::string> known) {
  if (wanted.size() < kMinPrefix) return {};
  const auto fits = [&](const std::string& one) { return lower(one).starts_with(wanted); };
  if (std::count_if(known.begin(), known.end(), fits) != 1) return {};
  return *std::find_if(known.begin(), known.end(), fits);
}

}  // namespace

std::size_t spelling_distance(std::string_view one, std::string_view other) {
  const std::size_t columns = other.size() + 1;
  std::vector<std::size_t> before(columns), row(columns), next(columns);
  for (std::size_t j = 0; j < columns; ++j) row[j] = j;
  for (std::size_t i = 1; i <= one.size(); ++i) {
    next[0] = i;
    for (std::size_t j = 1; j < columns; ++j) {
      const bool same = one[i - 1] == other[j - 1];
      next[j] = std::min({row[j] + 1, next[j - 1] + 1, row[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1])
        next[j] = std::min(next[j], before[j - 2] + 1);
    }
    before.swap(row);
    row.swap(next);
  }
  return row[columns - 1];
}

std::string nearest_word(std::string_view word, std::span<const std::string> known) {
  if (word.empty() || word.size() > kMaxLetters) return {};
  const std::string wanted = lower(word);
  std::string best;
  std::size_t limit = std::clamp<std::size_t>(word.size() / 3, 1, 3) + 1;
  for (const auto& candidate : known) {
    const std::size_t distance = spelling_distance(wanted, lower(candidate));
    if (distance >= limit || distance >= candidate.size()) continue;
    limit = distance;
    best = candidate;
    if (distance == 0) break;
  }
  return best.empty() ? only_one_with_prefix(wanted, known) : best;
}

}  // namespace pl
