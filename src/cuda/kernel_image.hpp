// SPDX-License-Identifier: Apache-2.0
// Kernels embedded at build time (cmake/Kernels.cmake): GPU code and the same source compiled for the simulated GPU.
#pragma once

#include <cstddef>

#include "cuda/driver_table.hpp"

namespace pl::cu {

// Null and 0 where a form was not built: no GPU code without nvcc. Points into the program; valid for ever.
struct kernel_image {
  const void* fatbin = nullptr;
  std::size_t fatbin_bytes = 0;
  const void* host_elf = nullptr;
  std::size_t host_elf_bytes = 0;
};

// Loads the form that the driver in use can run into the current context; the caller unloads it (cuModuleUnload).
// ENOTSUP if this build does not have that form; otherwise the driver's failure as make_error words it.
result<module_t> load_kernels(const driver_table& cuda, const kernel_image& image);

// ENOTSUP if CUDA_LAUNCH_BLOCKING is set: a launch then returns only when its kernel has ended, which a kernel that waits
// for the CPU never does. `consequence` ends the message.
status check_launches_return(const char* consequence);

// The module's kernel of that name. The driver's failure, which names the kernel, if it has none.
result<function_t> find_kernel(const driver_table& cuda, module_t module, const char* name);

}  // namespace pl::cu
