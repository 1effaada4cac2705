// SPDX-License-Identifier: Apache-2.0
#include "kernel_device.cuh"

PL_KERNEL void gpu_engine(std::uint64_t out) { pl::dev::store_relaxed<std::uint32_t>(out, 1); }
PL_EXPORT_KERNEL(gpu_engine)
