// SPDX-License-Identifier: Apache-2.0
// The cost of the parts of an exchange: GPU time and CPU time of each kind of queued operation, alone and after a
// kernel.
#pragma once

#include "measure/result_file.hpp"
#include "tools/common/gpu.hpp"

namespace pl::async {

struct cost_plan {
  int operations = 60;  // of a kind, queued in a row while the stream is held back
  int repeats = 9;      // repetitions of each kind, interleaved
  int peer = -1;        // ordinal of the GPU that is written to; -1: none
};

// One process. Prints a table; `file` may be null.
int run_cost(const tools::gpu_session& gpu, const cost_plan& plan, result_file* file);

}  // namespace pl::async
