// SPDX-License-Identifier: Apache-2.0
// The end of each pass of a loop within a graph.
#include "cuda/graph_condition.cuh"

#if !defined(__CUDACC__) || defined(PL_DEVICE_RUNTIME)
using namespace pl::dev;

// One thread. `left`: a word of this GPU with the passes that are still to be made, this one included.
PL_KERNEL void graph_loop_step(std::uint64_t condition, std::uint64_t left) {
  const std::uint64_t rest = load_relaxed<std::uint64_t>(left) - 1;
  store_relaxed<std::uint64_t>(left, rest);
  set_graph_condition(condition, rest != 0 ? 1 : 0);
}
PL_EXPORT_KERNEL(graph_loop_step)
#endif
