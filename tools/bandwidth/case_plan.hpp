// SPDX-License-Identifier: Apache-2.0
// A testcase before it runs: which transfers go together, and which cell each rate belongs to. Plans are made from numbers
// alone, so that "what does this testcase measure?" is tested without a GPU.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tools/bandwidth/testcase.hpp"

namespace pl::bandwidth {

// What plans depend on.
struct machine_shape {
  std::vector<unsigned> multiprocessors;      // by GPU
  std::vector<std::vector<bool>> can_access;  // [from][to]
  std::vector<bool> bulk_copies = {};         // by GPU: it has the instructions (TMA)
  bool kernels_share = false;  // two copy kernels run on each multiprocessor at once; not where it is simulated
  bool has_bulk_copies() const { return std::find(bulk_copies.begin(), bulk_copies.end(), true) != bulk_copies.end(); }
  int gpus() const { return static_cast<int>(multiprocessors.size()); }
  bool reaches(int source, int destination) const {
    return source != destination && can_access[static_cast<std::size_t>(source)][static_cast<std::size_t>(destination)];
  }
  bool has_peers() const;
};
machine_shape shape_of(gpu_set& gpus);
constexpr const char* kNoBulkCopies = "no GPU here has bulk copies (TMA): they need compute capability 9.0 (Hopper)";

// Where one rate of a run goes.
struct cell_target {
  // own: of one transfer; total: over the common window; half_of_total and sum_of_own: the original's arithmetic.
  enum class rate { own, total, half_of_total, sum_of_own } rate_kind = rate::own;
  std::size_t transfer = 0;  // whose rate, whose ends
  std::size_t matrix = 0, row = 0, column = 0;
  unsigned same_direction = 1;
  bool opposite_too = false;
  bool through_one_link = false;  // all transfers of the GPU leave by one link; with direct links to each peer they do not
  bool has_expectation = true;    // false: a sum over several GPUs' links, which the model does not know
};

struct cell_run {
  std::vector<transfer_spec> transfers;
  std::function<result<latency_outcome>(test_context&)> latency;  // instead of transfers
  transfer_path latency_path;
  std::vector<cell_target> targets;
  bool without_peer_access = false;  // the two GPUs of the first transfer must not reach each other
  bool judged_together = false;      // arbitrary company: link_share.hpp says what each should reach
  std::string name;                  // for progress: "G0 -> G1"
};

struct case_plan {
  std::string waived;            // why nothing can run; empty: something can
  std::vector<matrix> matrices;  // with every cell, not applicable until it is measured
  std::vector<cell_run> runs;
};

// Runs a plan. An error in one run marks its cells and the next run follows; an interrupt ends the loop. A run of which a
// cell is low only because its samples vary is made again, twice at most; the last one counts.
test_outcome execute(const testcase& self, test_context& context, case_plan plan);

// Worst state of the cells, with the first reason; `interrupted` wins. Waived if nothing was measured and nothing failed.
void conclude(test_outcome& outcome, bool interrupted);

// A matrix of not applicable cells.
matrix make_matrix(std::string part, std::string title, std::vector<std::string> rows, std::vector<std::string> columns);
// "0", "1", ... for the GPUs.
std::vector<std::string> gpu_labels(int count);

// Each of `count` kernels on one GPU gets this many multiprocessors, so that all run at once. 0 (all) for a single one
// without a budget.
unsigned share_of_multiprocessors(const machine_shape& shape, const test_options& options, int gpu, std::size_t count);

case_plan plan_host_case(int index, const machine_shape& shape, const test_options& options);
case_plan plan_peer_case(int index, const machine_shape& shape, const test_options& options);
case_plan plan_local_case(int index, const machine_shape& shape, const test_options& options);
case_plan plan_latency_case(int index, const machine_shape& shape, const test_options& options);
// The plan of any testcase but the multi-node ones.
case_plan plan_of(int index, const machine_shape& shape, const test_options& options);

}  // namespace pl::bandwidth
