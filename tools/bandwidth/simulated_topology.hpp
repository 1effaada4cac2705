// SPDX-License-Identifier: Apache-2.0
// NUMA nodes of the simulated machine, which this one need not have: where GPUs are near and where host memory is said to
// lie. Copies then take as long as over such a way (PEERLANE_SIM_RATES). Used only when the GPU is simulated.
#pragma once

#include <cstddef>

namespace pl::bandwidth::simulated {

int node_count();          // 1 without a simulated GPU
int node_of_gpu(int gpu);  // -1 if not known
bool has_rates();
void set_host_node(const void* memory, std::size_t bytes, int node);  // -1: forget it
int host_node(const void* memory);                                    // -1: nothing was said

}  // namespace pl::bandwidth::simulated
