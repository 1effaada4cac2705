// SPDX-License-Identifier: Apache-2.0
#include "collectives/algorithm_table.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <sstream>

#include "base/text.hpp"

namespace pl::collectives {
namespace {

constexpr std::uint64_t kNoLimit = UINT64_MAX;

constexpr std::array<const char*, kCollectives> kCollectiveNames{"barrier",    "broadcast",   "gather",     "scatter",
                                                                 "all_gather", "reduce",      "all_reduce", "reduce_scatter",
                                                                 "all_to_all", "all_to_all_v"};
constexpr std::array<const char*, kAlgorithms> kAlgorithmNames{
    "linear", "pairwise", "binomial", "dissemination", "recursive_doubling", "bruck", "ring", "scatter_ring", "ring_gather"};

using enum algorithm;
constexpr algorithm kOfBarrier[] = {dissemination};
constexpr algorithm kOfBroadcast[] = {linear, binomial, scatter_ring};
constexpr algorithm kOfGather[] = {linear, binomial};
constexpr algorithm kOfAllGather[] = {linear, bruck, recursive_doubling, ring};
constexpr algorithm kOfReduce[] = {binomial, ring_gather};
constexpr algorithm kOfAllReduce[] = {recursive_doubling, ring};
constexpr algorithm kOfReduceScatter[] = {pairwise};
constexpr algorithm kOfAllToAll[] = {linear, pairwise, bruck};
constexpr algorithm kOfAllToAllV[] = {linear, pairwise};

constexpr std::array<std::span<const algorithm>, kCollectives> kChoices{
    kOfBarrier, kOfBroadcast, kOfGather,        kOfGather,   kOfAllGather,
    kOfReduce,  kOfAllReduce, kOfReduceScatter, kOfAllToAll, kOfAllToAllV};

template <class Kind, std::size_t kCount>
std::optional<Kind> named(const std::array<const char*, kCount>& names, std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Kind>(found - names.begin());
}

std::optional<std::uint64_t> limit_from(std::string_view text) {
  if (text == "*") return kNoLimit;
  std::uint64_t out = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return out;
}

std::string limit_text(std::uint64_t limit) { return limit == kNoLimit ? "*" : std::to_string(limit); }

std::string joined(std::span<const algorithm> choices) {
  std::string out;
  for (const algorithm each : choices) out += std::string(out.empty() ? "" : ", ") + name_of(each);
  return out;
}

// A sentence says what is wrong with the line.
result<algorithm_rule> rule_from(const std::string& line) {
  std::istringstream words(line);
  std::string kind, ranks, bytes, chosen, rest;
  words >> kind >> ranks >> bytes >> chosen;
  const auto found = named<collective>(kCollectiveNames, kind);
  if (!found) return failure{EINVAL, format("'%s' is not a collective", kind.c_str())};
  const auto max_ranks = limit_from(ranks), max_bytes = limit_from(bytes);
  if (!max_ranks || !max_bytes || (words >> rest))
    return failure{EINVAL, "expected a line with: collective, maximum ranks, maximum bytes, algorithm (* for no limit)"};
  const auto algorithm_found = named<algorithm>(kAlgorithmNames, chosen);
  const auto choices = algorithms_of(*found);
  if (!algorithm_found || std::find(choices.begin(), choices.end(), *algorithm_found) == choices.end())
    return failure{EINVAL,
                   format("%s has no algorithm '%s'; it has %s", kind.c_str(), chosen.c_str(), joined(choices).c_str())};
  return algorithm_rule{*found, *max_ranks, *max_bytes, *algorithm_found};
}

}  // namespace

const char* name_of(collective kind) noexcept { return kCollectiveNames[static_cast<std::size_t>(kind)]; }
const char* name_of(algorithm kind) noexcept { return kAlgorithmNames[static_cast<std::size_t>(kind)]; }
std::span<const algorithm> algorithms_of(collective kind) noexcept { return kChoices[static_cast<std::size_t>(kind)]; }

algorithm_table algorithm_table::defaults() {
  algorithm_table out;
  out.rules_ = {
      {collective::barrier, kNoLimit, kNoLimit, dissemination},
      {collective::broadcast, 2, kNoLimit, linear},
      {collective::broadcast, kNoLimit, 64 << 10, binomial},
      {collective::broadcast, kNoLimit, kNoLimit, scatter_ring},
      {collective::gather, kNoLimit, 1024, binomial},
      {collective::gather, kNoLimit, kNoLimit, linear},
      {collective::scatter, kNoLimit, 1024, binomial},
      {collective::scatter, kNoLimit, kNoLimit, linear},
      {collective::all_gather, 4, 4096, linear},
      {collective::all_gather, kNoLimit, 4096, bruck},
      {collective::all_gather, kNoLimit, kNoLimit, ring},
      {collective::reduce, kNoLimit, 64 << 10, binomial},
      {collective::reduce, kNoLimit, kNoLimit, ring_gather},
      {collective::all_reduce, kNoLimit, 16 << 10, recursive_doubling},
      {collective::all_reduce, kNoLimit, kNoLimit, ring},
      {collective::reduce_scatter, kNoLimit, kNoLimit, pairwise},
      {collective::all_to_all, 4, 4096, linear},
      {collective::all_to_all, kNoLimit, 256, bruck},
      {collective::all_to_all, kNoLimit, kNoLimit, pairwise},
      {collective::all_to_all_v, kNoLimit, kNoLimit, linear},
  };
  return out;
}

result<algorithm_table> algorithm_table::parse(std::string_view text) {
  auto out = defaults();
  std::vector<algorithm_rule> read;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    line = line.substr(0, line.find('#'));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    auto rule = rule_from(line);
    if (!rule) return failure{EINVAL, format("table of algorithms, line %d: %s", number, rule.error().message.c_str())};
    read.push_back(*rule);
  }
  out.rules_.insert(out.rules_.begin(), read.begin(), read.end());
  return out;
}

std::string algorithm_table::text() const {
  std::string out = "# collective       ranks at most  bytes at most  algorithm\n";
  for (unsigned kind = 0; kind < kCollectives; ++kind)
    for (const auto& rule : rules_)
      if (rule.kind == collective{static_cast<std::uint8_t>(kind)})
        out += format("%-18s %14s %14s  %s\n", name_of(rule.kind), limit_text(rule.max_ranks).c_str(),
                      limit_text(rule.max_bytes).c_str(), name_of(rule.chosen));
  return out;
}

algorithm algorithm_table::choose(collective kind, int ranks, std::uint64_t bytes) const noexcept {
  for (const auto& rule : rules_)
    if (rule.kind == kind && static_cast<std::uint64_t>(ranks) <= rule.max_ranks && bytes <= rule.max_bytes)
      return rule.chosen;
  return algorithms_of(kind).front();
}

}  // namespace pl::collectives
