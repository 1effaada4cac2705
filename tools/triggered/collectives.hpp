// SPDX-License-Identifier: Apache-2.0
// Collectives that streams carry out, ours and NCCL's: the time of one in a row of them, queued and as a graph.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/stream_collectives.hpp"
#include "measure/result_file.hpp"
#include "tools/triggered/bench_rank.hpp"

namespace pl::async {

enum class stream_collective { all_reduce, reduce_scatter, all_gather, all_to_all };
const char* name_of(stream_collective kind);

struct collectives_plan {
  std::vector<stream_collective> kinds{stream_collective::all_reduce};
  std::vector<std::size_t> sizes;  // of the larger side: what all ranks have together for gathers and scatters
  bool has_ours = true, has_nccl = false;
  collectives::element type = collectives::element::float32;
  int repeats = 21;  // repetitions of each contender, interleaved
  int calls = 20;    // in a repetition; a quarter of them for sizes above 1 MiB
  collectives::stream_collectives_options options;
};

// Collective. Prints on rank 0; `file` may be null. Exit code: 1 after wrong results.
int run_collectives(bench_rank& session, const collectives_plan& plan, result_file* file);

}  // namespace pl::async
