// SPDX-License-Identifier: Apache-2.0
// The embedded kernels of the tools (tools/common/kernels), loaded into the current context.
#pragma once

#include <array>

#include "cuda/kernel_image.hpp"
#include "tools/common/gpu.hpp"

namespace pl::tools {

class kernel_module {
 public:
  // Throws when this build has no GPU code. Without an image: that of pplat.cu.
  explicit kernel_module(const gpu_session& gpu);
  kernel_module(const gpu_session& gpu, const cu::kernel_image& image);
  ~kernel_module();
  kernel_module(const kernel_module&) = delete;
  kernel_module& operator=(const kernel_module&) = delete;

  // Why this build cannot run kernels on this GPU; empty if it can.
  static std::string why_missing(const gpu_session& gpu);

  // Launches `name` with parameters passed by value, in order.
  template <class... Args>
  void launch(const char* name, unsigned blocks, unsigned threads, unsigned shared_bytes, cu::stream_t stream,
              Args... args) const {
    std::array<void*, sizeof...(Args)> parameters{&args...};
    launch_raw(name, blocks, threads, shared_bytes, stream, parameters.data());
  }

 private:
  void launch_raw(const char* name, unsigned blocks, unsigned threads, unsigned shared_bytes, cu::stream_t stream,
                  void** parameters) const;
  const gpu_session& gpu_;
  cu::module_t module_ = nullptr;
};

}  // namespace pl::tools
