// SPDX-License-Identifier: Apache-2.0
// The example's kernel as the simulated GPU takes it, and for nvcc.
#include "cuda/device_port.cuh"

#if !defined(__CUDACC__)
#define __global__
#endif
#include "examples/cuda/kernel_pipe.cu"

PL_EXPORT_KERNEL(produce_messages)
PL_EXPORT_KERNEL(consume_messages)
