// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernel_image.hpp"

#include <cerrno>
#include <string>

#include "base/env.hpp"
#include "base/text.hpp"

namespace pl::cu {

result<module_t> load_kernels(const driver_table& cuda, const kernel_image& image) {
  const void* const wanted = cuda.is_simulated ? image.host_elf : image.fatbin;
  if (wanted == nullptr)
    return failure{ENOTSUP,
                   cuda.is_simulated
                       ? "this build has no kernels for the simulated GPU: build it with PEERLANE_SIM=ON"
                       : "this build has no GPU kernels because no nvcc was found when it was configured: install the "
                         "CUDA toolkit (or the PyPI package nvidia-cuda-nvcc in .venv) and build again"};
  if (cuda.cuModuleLoadData == nullptr) return failure{ENOSYS, "this libcuda.so.1 lacks cuModuleLoadData"};
  module_t module = nullptr;
  if (const result_t rc = cuda.cuModuleLoadData(&module, wanted); rc != error_code::success)
    return make_error(cuda, rc, "loading Peerlane's kernels");
  return module;
}

status check_launches_return(const char* consequence) {
  if (env_read("CUDA_LAUNCH_BLOCKING").integer == 0) return {};
  return failure{
      ENOTSUP,
      format("CUDA_LAUNCH_BLOCKING=1 makes every launch wait until its kernel has ended, so %s: unset it", consequence)};
}

result<function_t> find_kernel(const driver_table& cuda, module_t module, const char* name) {
  function_t function = nullptr;
  if (const result_t rc = cuda.cuModuleGetFunction(&function, module, name); rc != error_code::success)
    return make_error(cuda, rc, std::string("the kernel ") + name);
  return function;
}

}  // namespace pl::cu
