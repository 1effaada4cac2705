// SPDX-License-Identifier: Apache-2.0
// Which algorithm a collective takes, by the number of ranks and of bytes: a table of rules, the first that fits counts.
//
// As text, a line for each rule: `all_reduce 8 16384 recursive_doubling`: up to 8 ranks and 16384 bytes; * is no limit. The
// bytes are those of a broadcast, of one rank's contribution, or of what one rank sends another. All ranks must use one
// table, so the executor takes rank 0's.
//
// Owns: its rules. Threads: reading from any. Errors: EINVAL with the line that is wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"

namespace pl::collectives {

enum class collective : std::uint8_t {
  barrier,
  broadcast,
  gather,
  scatter,
  all_gather,
  reduce,
  all_reduce,
  reduce_scatter,
  all_to_all,
  all_to_all_v,
};
inline constexpr unsigned kCollectives = 10;

enum class algorithm : std::uint8_t {
  linear,              // each pair of ranks directly, all at once
  pairwise,            // each pair directly, one after the other
  binomial,            // a tree from or to the root
  dissemination,       // log2 rounds, any number of ranks
  recursive_doubling,  // log2 rounds of pairs; other numbers of ranks than powers of two fold first
  bruck,               // log2 rounds, blocks of several ranks in one message
  ring,                // neighbours only, each byte crosses each link once
  scatter_ring,        // scatter from the root, then the ring
  ring_gather,         // reduce by the ring, then gather to the root
};
inline constexpr unsigned kAlgorithms = 9;

const char* name_of(collective kind) noexcept;
const char* name_of(algorithm kind) noexcept;
// Those that a collective has, the simplest first.
std::span<const algorithm> algorithms_of(collective kind) noexcept;

struct algorithm_rule {
  collective kind = collective::barrier;
  std::uint64_t max_ranks = 0, max_bytes = 0;  // UINT64_MAX: no limit
  algorithm chosen = algorithm::linear;
};

class algorithm_table {
 public:
  // Chosen by what each algorithm sends and in how many steps, not by a measurement: docs/collectives.md says how to replace
  // it.
  static algorithm_table defaults();
  // Lines as above; # begins a comment. What they do not cover stays as in defaults().
  static result<algorithm_table> parse(std::string_view text);
  std::string text() const;

  algorithm choose(collective kind, int ranks, std::uint64_t bytes) const noexcept;
  // Before all other rules.
  void prefer(const algorithm_rule& rule) { rules_.insert(rules_.begin(), rule); }

 private:
  std::vector<algorithm_rule> rules_;
};

}  // namespace pl::collectives
