// SPDX-License-Identifier: Apache-2.0
#include "tools/common/kernel_module.hpp"

#include "base/text.hpp"
#include "pplat_image.hpp"

namespace pl::tools {

kernel_module::kernel_module(const gpu_session& gpu) : kernel_module(gpu, kernels::pplat()) {}

kernel_module::kernel_module(const gpu_session& gpu, const cu::kernel_image& image)
    : gpu_(gpu), module_(must(cu::load_kernels(gpu.cuda(), image))) {}

std::string kernel_module::why_missing(const gpu_session& gpu) {
  const auto& image = kernels::pplat();
  if (gpu.simulated() ? image.host_elf != nullptr : image.fatbin != nullptr) return "";
  return "this build has no GPU code: it was made without nvcc";
}

kernel_module::~kernel_module() { gpu_.cuda().cuModuleUnload(module_); }

void kernel_module::launch_raw(const char* name, unsigned blocks, unsigned threads, unsigned shared_bytes,
                               cu::stream_t stream, void** parameters) const {
  cu::function_t function = nullptr;
  gpu_.check(gpu_.cuda().cuModuleGetFunction(&function, module_, name), format("kernel %s", name));
  gpu_.check(gpu_.cuda().cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared_bytes, stream, parameters, nullptr),
             format("launch of %s", name));
}

}  // namespace pl::tools
