// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pl::ucx {

// Whether the kernel knows a device for RDMA. Reads a directory.
bool has_rdma_device();

}  // namespace pl::ucx
