// SPDX-License-Identifier: Apache-2.0
// For kernels that end a loop of the graph they run in. On a GPU the call is the device runtime's: pl_kernel_image() links
// it for sources behind DEVICE_RUNTIME.
#pragma once

#include "cuda/kernel_device.cuh"

namespace pl::dev {

// The condition of a WHILE node: its body runs again while the value is not 0.
#if defined(PL_DEVICE_RUNTIME)
PL_DEVICE void set_graph_condition(std::uint64_t condition, unsigned value) { cudaGraphSetConditional(condition, value); }
#elif !defined(__CUDACC__)
// The simulated driver's handle is the address of the value.
PL_DEVICE void set_graph_condition(std::uint64_t condition, unsigned value) {
  __atomic_store_n(reinterpret_cast<unsigned*>(condition), value, __ATOMIC_RELEASE);
}
#endif

}  // namespace pl::dev
