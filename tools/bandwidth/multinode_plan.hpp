// SPDX-License-Identifier: Apache-2.0
// A multi-node testcase before it runs: which rank copies what in which round, and which cells the rates belong to. Made
// from numbers alone, the same on every rank.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/bandwidth/outcome.hpp"
#include "tools/bandwidth/pair_choice.hpp"

namespace pl::bandwidth {

struct rank_target {
  std::size_t matrix = 0, row = 0, column = 0;
};

constexpr int kEveryRank = -1;

// `executor_rank` copies from a buffer of one rank into a buffer of another (one of the two is its own), or into the
// multicast object `destination_buffer` of kEveryRank.
struct rank_transfer {
  int executor_rank = 0;
  int source_rank = 0;
  unsigned source_buffer = 0;
  int destination_rank = 0;
  unsigned destination_buffer = 0;
  std::vector<rank_target> targets;  // a cell with several transfers is their sum
};

// Transfers that run at the same time. No two of one rank, and no two share a buffer.
struct rank_round {
  std::string name;  // for progress
  std::vector<rank_transfer> transfers;
};

struct rank_shape {
  int size = 0;
  bool pairs_at_once = false;  // pairs of different GPUs share no link
  // [source][destination]: why the source's GPU cannot reach the destination's memory; empty: it can.
  std::vector<std::vector<std::string>> why_not;
  bool original_mistakes = false;
  pair_choice pairs;  // of ranks
};

struct rank_plan {
  executor_kind kind = executor_kind::ce;
  std::vector<matrix> matrices;  // with every cell, not applicable until it is measured
  std::vector<rank_round> rounds;
};

// Multicast objects that a testcase needs; 0: it is not one of multicast.
unsigned multicast_objects_of(int index, int size);
// Buffers on each rank that any other testcase needs.
unsigned buffers_of_multinode(int index, int size);
rank_plan plan_multinode(int index, const rank_shape& shape);

// Every pair of 0..n-1 once, in as few rounds of disjoint pairs as there can be: n - 1, or n if n is odd.
std::vector<std::vector<std::pair<int, int>>> round_robin_schedule(int n);

}  // namespace pl::bandwidth
