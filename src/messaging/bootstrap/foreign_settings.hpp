// SPDX-License-Identifier: Apache-2.0
// Variables of MVAPICH2, Open MPI and UCX that env_read does not map to a PEERLANE_* variable: their meaning for messages,
// and those that messages do not support. Any thread; the environment is read at each call.
#pragma once

#include <string>
#include <vector>

namespace pl::messaging {

// MV2_PROCESS_TO_RAIL_MAPPING=mlx5_0:mlx5_3 as UCX's net devices, "mlx5_0:1,mlx5_3:1": one for each rank of the node in
// turn. Empty for MVAPICH2's other ways to write it (numbers, BUNCH, SCATTER).
std::string rails_of_mapping(const std::string& mapping);

struct foreign_rails {
  std::string devices;       // as PEERLANE_LINK_RAILS; empty: no variable names rails that this machine has
  bool is_one_each = false;  // each rank of the node has one of them
};

// From MV2_PROCESS_TO_RAIL_MAPPING, MV2_IBA_HCA=mlx5_0:mlx5_1 or OMPI_MCA_btl_openib_if_include=mlx5_0:1,mlx5_1: the first
// that names adapters of this machine. `adapters` is sysfs's folder.
foreign_rails rails_from_environment(const std::string& adapters = "/sys/class/infiniband");

// UCX_IB_GPU_DIRECT_RDMA=n: adapters are not to touch GPU memory.
bool forbids_gpu_rdma();

// One line for each variable that is set and not supported, with the one to set instead.
std::vector<std::string> unused_settings(const std::string& adapters = "/sys/class/infiniband");

}  // namespace pl::messaging
