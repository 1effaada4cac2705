// SPDX-License-Identifier: Apache-2.0
// A 5-point Jacobi iteration over blocks, one for each rank: after every step each rank's edges go to its neighbours. How
// long a step takes by each way to exchange them, with the fields checked.
#pragma once

#include <vector>

#include "exchange.hpp"
#include "result_file.hpp"
#include "station.hpp"

namespace pl::async {

struct stencil_plan {
  int gx = 2, gy = 1;  // ranks in a row, rows
  std::vector<arm> arms{arm::normal, arm::peer};
  std::vector<int> sizes{256};  // points along an edge of a rank's block
  int steps = 500;              // of a turn; fewer where a block is large
  int batch = 20;               // steps queued at once
  int repeats = 5;              // turns of each arm, interleaved
};

// Bytes of a station's windows for blocks of n x n: four edges of doubles, twice.
constexpr std::size_t stencil_window_bytes(int n) { return 2 * 4 * 8 * static_cast<std::size_t>(n); }

// Collective. Prints on rank 0; `file` may be null. Exit code: 1 after a wrong field on this rank.
int run_stencil(station& at, const stencil_plan& plan, result_file* file);

}  // namespace pl::async
