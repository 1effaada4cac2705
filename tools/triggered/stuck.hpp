// SPDX-License-Identifier: Apache-2.0
// Streams that wait for signals that never come, and how long it takes to release them all.
#pragma once

#include "measure/result_file.hpp"
#include "tools/triggered/bench_rank.hpp"

namespace pl::async {

struct stuck_plan {
  int streams = 64;  // one channel each
  int repeats = 5;
};

// Collective, between two: rank 0 has the streams. Exit code: 1 if one stayed stuck.
int run_stuck(bench_rank& session, const stuck_plan& plan, result_file* file);

}  // namespace pl::async
