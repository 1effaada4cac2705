// SPDX-License-Identifier: Apache-2.0
// The processes of a benchmark: forked, each at its GPU, the report with rank 0.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "measure/result_file.hpp"
#include "tools/common/options.hpp"
#include "tools/common/tool.hpp"
#include "tools/triggered/bench_rank.hpp"
#include "triggered/context.hpp"

namespace pl::async {

struct rank_plan {
  int ranks = 2;
  std::vector<int> gpus;              // ordinals, assigned to ranks round robin; empty: all that answer
  std::vector<std::string> networks;  // namespaces, assigned to ranks round robin; empty: that of this process
  std::size_t window_bytes = 8;       // of each bench_rank
  triggered::context_options context;
  tools::common_options common;
  std::function<void()> when_forked;  // in the launching process, once all ranks exist: the place to start threads there
};

// GPUs that answer, real or simulated; throws if none does. Initialises CUDA: not before a fork.
int gpu_count();

// Runs `body` in each of the forked ranks, with the result file on rank 0 and null elsewhere, and returns the exit code.
// What ranks other than 0 print goes nowhere. Before CUDA is touched.
int run_ranks(const tools::invocation& call, const rank_plan& plan,
              const std::function<int(bench_rank& session, result_file* file)>& body);

}  // namespace pl::async
