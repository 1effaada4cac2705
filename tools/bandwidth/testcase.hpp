// SPDX-License-Identifier: Apache-2.0
// The testcases by their keys and numbers.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tools/bandwidth/group.hpp"
#include "tools/bandwidth/latency.hpp"
#include "tools/bandwidth/outcome.hpp"
#include "tools/bandwidth/pair_choice.hpp"

namespace pl::bandwidth {

struct test_options {
  std::uint64_t bytes = 512u << 20;
  method settings;
  bool use_mean = false;
  bool disable_affinity = false;
  host_kind host = host_kind::pinned;
  int numa_node = -1;              // of host memory; -1: near the GPU
  unsigned sm_count = 0;           // budget of one GPU's copy kernels together; 0: all
  unsigned threads = 0;            // of BAR transfers; 0: 1
  bool original_mistakes = false;  // --compat-bugs
  bool mean_latency = false;       // --compat: the original's latency is whole time / accesses, not a median
  bool judge = true;
  bool judge_small =
      true;  // false (sweeps): sizes at which start-up counts get no verdict               // false: --no-judge
  thresholds limits;
  pair_choice pairs;                           // tests between pairs measure only these
  std::string confidential;                    // not empty: confidential computing is on, and this says how it is known
  std::uint64_t long_list_bytes = 256u << 20;  // pointer chase in GPU memory: no L2 is that large (B200: 126 MiB)
  bool allow_multicast = false;                // cuMulticast* for testcases 54 and 55
};

// What a testcase gets. One thread.
struct test_context {
  gpu_set& gpus;
  buffer_pool& pool;
  runner& run;
  const test_options& options;
  const machine_links& links;
  group* ranks = nullptr;  // null: not started as several processes
  // Asked between cells; true: stop, keep what was measured.
  std::function<bool()> interrupted;
  // Before each cell: progress. `done` of `cells`.
  std::function<void(std::size_t done, std::size_t cells, const std::string& description)> progress;
  // Every finished cell, for output that is flushed as it goes.
  std::function<void(const std::string& key, const matrix& grid, std::size_t row, std::size_t column)> cell_done;
};

struct testcase {
  int index;  // the number that -l shows and -t takes: the place in the list
  int plan;  // what the planners know it by: 0-47 as the original's 0.8 numbered them, ours from 48 in order of their making
  const char* key;
  const char* description;  // one or more lines, our words
  enum class kind { single_node, multi_node, ours } group;
  bool has_size;  // false: -b and --size-sweep do not change it (latencies)
  // Fills matrices; state and reason as outcome.hpp says. Never throws.
  test_outcome (*run)(const testcase& self, test_context& context);
};

// All of them: 0-43 single node, 44-56 multi-node, from 57 ours.
std::span<const testcase> all_testcases();
// Those that the original has too: 0-56.
std::span<const testcase> original_testcases();
// By key or number; null if there is none.
const testcase* find_testcase(const std::string& key_or_index);

// testcase_multinode.cpp: those of 44-56, called by the table.
test_outcome run_multinode(const testcase& self, test_context& context);

}  // namespace pl::bandwidth
