// SPDX-License-Identifier: Apache-2.0
// Two ranks, each in turn: receive, a kernel that uses the data, send. Measures the round trip for each method of signalling
// the other side, and its CPU cost.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "measure/result_file.hpp"
#include "tools/triggered/bench_rank.hpp"
#include "tools/triggered/exchange.hpp"

namespace pl::async {

struct pingpong_plan {
  std::vector<contender> contenders{{arm::normal}, {arm::peer}, {arm::peer_kernel}};
  bool has_modes = false;                   // the run mode is part of a contender's name
  std::vector<std::size_t> sizes{128};      // bytes, multiples of 8
  std::vector<std::uint64_t> kernel_ns{0};  // busy time of the kernel; 0: only its work
  int iterations = 10'000;
  int batch = 20;   // iterations queued at once, and until the next event for which the CPU waits
  int unroll = 0;   // iterations of one graph; 0: as many as `batch`
  int repeats = 5;  // repetitions of each contender, interleaved
};

// Collective. Prints on rank 0; `file` may be null. Exit code: 1 after wrong data, or if no contender is left. One that does
// not exist here is left out with its reason.
int run_pingpong(bench_rank& session, const pingpong_plan& plan, result_file* file);

}  // namespace pl::async
