// SPDX-License-Identifier: Apache-2.0
#include "ucx/rdma_device.hpp"

#include <filesystem>

namespace pl::ucx {

bool has_rdma_device() {
  std::error_code ignored;
  return std::filesystem::directory_iterator("/sys/class/infiniband", ignored) != std::filesystem::directory_iterator();
}

}  // namespace pl::ucx
