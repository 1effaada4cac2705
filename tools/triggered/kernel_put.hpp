// SPDX-License-Identifier: Apache-2.0
// Transfers that kernels start (docs/device.md): the time of one, by size and by who calls, and how many a second go, by the
// number of blocks that post.
#pragma once

#include <cstdint>
#include <vector>

#include "measure/result_file.hpp"
#include "tools/common/gpu.hpp"

namespace pl::async {

struct kernel_put_plan {
  std::vector<std::size_t> sizes{64, 8192, 65536, 1048576};
  std::vector<int> blocks{1, 8, 64};
  int rounds = 200;    // puts in a repetition
  int repeats = 9;     // repetitions of each case
  int puts = 100'000;  // of each rate, by all blocks
};

// One process. Prints tables; `file` may be null. Exit code: 1 after wrong bytes.
int run_kernel_put(const tools::gpu_session& gpu, const kernel_put_plan& plan, result_file* file);

}  // namespace pl::async
