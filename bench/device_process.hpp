// SPDX-License-Identifier: Apache-2.0
// One of several processes that post into rings: how it ends when something fails, and CUDA with the kernels that post.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "base/status.hpp"
#include "cuda/kernel_image.hpp"
#include "device_put_kernels_image.hpp"

namespace pl {

[[noreturn]] inline void give_up(const std::string& step) {
  std::printf("FAILED (process %d): %s\n", static_cast<int>(getpid()), step.c_str());
  std::fflush(stdout);
  _exit(1);
}
inline void must(cu::result_t code, const char* step) {
  if (code != cu::error_code::success) give_up(step + std::string(": ") + cu::error_text(**cu::driver(), code));
}
template <class T>
T must(result<T> made, const char* step) {
  if (!made) give_up(step + std::string(": ") + made.error().message);
  return std::move(*made);
}

struct device_process {
  const cu::driver_table& cuda = **cu::driver();
  cu::context_t context = nullptr;
  cu::module_t module = nullptr;
  cu::stream_t stream = nullptr;

  device_process() {
    if (status ready = cu::initialize(cuda); !ready) give_up(ready.error().message);
    must(cuda.cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent");
    module = must(cu::load_kernels(cuda, kernels::device_put_kernels()), "kernels");
    must(cuda.cuStreamCreate(&stream, 1), "cuStreamCreate");
  }
  template <class... Args>
  void launch(const char* name, unsigned blocks, unsigned threads, Args... args) const {
    cu::function_t function = nullptr;
    must(cuda.cuModuleGetFunction(&function, module, name), name);
    void* parameters[] = {&args...};
    must(cuda.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, nullptr), name);
  }
};

}  // namespace pl
