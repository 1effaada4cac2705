/* SPDX-License-Identifier: Apache-2.0
 * What these examples call of the CUDA driver to launch a kernel. In your program, include <cuda.h> instead. */
#ifndef EXAMPLE_KERNEL_GPU_H
#define EXAMPLE_KERNEL_GPU_H

#include <peerlane/result.hpp>
#include <utility>

#include "gpu.h"

extern "C" {
int cuModuleLoad(void** module, const char* path);
int cuModuleGetFunction(void** function, void* module, const char* name);
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned block_x, unsigned block_y,
                   unsigned block_z, unsigned shared_bytes, void* stream, void** parameters, void** extra);
int cuMemcpyDtoH_v2(void* destination, unsigned long long source, size_t size_bytes);
int cuMemcpyHtoD_v2(unsigned long long destination, const void* source, size_t size_bytes);
}

/* One thread of the kernel, on a stream of its own. */
static inline void* launch_kernel(const char* path, const char* name, void** parameters) {
  void *module = nullptr, *function = nullptr, *stream = nullptr;
  if (cuModuleLoad(&module, path) != 0 || cuModuleGetFunction(&function, module, name) != 0 ||
      cuStreamCreate(&stream, 1) != 0 || cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr) != 0) {
    fprintf(stderr, "the kernel %s of %s cannot be launched\n", name, path);
    exit(2);
  }
  return stream;
}

/* What a call of the library answered, or the end of the example. */
template <class T>
T demand(peerlane::result<T> answer) {
  if (answer) return *std::move(answer);
  fprintf(stderr, "%s\n", answer.error().message.c_str());
  exit(1);
}

#endif
