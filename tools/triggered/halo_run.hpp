// SPDX-License-Identifier: Apache-2.0
// Fields over blocks, one for each rank, whose edges go to the neighbours again and again: how long a step takes by each way
// to exchange them, with the fields checked.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "measure/result_file.hpp"
#include "tools/triggered/bench_rank.hpp"
#include "tools/triggered/exchange.hpp"
#include "tools/triggered/halo_problem.hpp"

namespace pl::async {

struct halo_plan {
  std::string step = "step";  // what one is called
  std::string title;          // "5-point Jacobi"
  std::function<std::unique_ptr<halo_problem>(bench_rank& session, const block_place& place)> make;
  int gx = 2, gy = 1;  // ranks in a row, rows
  std::vector<arm> arms{arm::normal, arm::peer};
  std::vector<int> sizes{256};  // points along an edge of a rank's block
  int steps = 500;              // in a repetition; fewer if a block is large; whole periods
  int batch = 20;               // steps queued at once
  int repeats = 5;              // repetitions of each arm, interleaved
};

// Collective. Prints on rank 0; `file` may be null. Exit code: 1 after a wrong field on this rank.
int run_halos(bench_rank& session, const halo_plan& plan, result_file* file);

}  // namespace pl::async
