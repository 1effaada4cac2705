// SPDX-License-Identifier: Apache-2.0
// Between a CPU and the front end of its GPU, without any peer: the latency from a CPU's store to the stream and back to the
// CPU, and how many words a second a stream can write for a CPU to see.
#pragma once

#include <vector>

#include "measure/result_file.hpp"
#include "tools/common/gpu.hpp"

namespace pl::async {

struct poke_plan {
  int pokes = 2000;           // of each method, after some that are not counted
  int repeats = 20;           // repetitions of each list length
  std::vector<int> stuck{0};  // other streams that are inside a wait meanwhile: each of these numbers, one after the other
};

// Prints; `file` may be null. Exit code.
int run_poke(const tools::gpu_session& gpu, const poke_plan& plan, result_file* file);

}  // namespace pl::async
