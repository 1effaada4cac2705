// SPDX-License-Identifier: Apache-2.0
// Environment variables of MVAPICH2, Open MPI and UCX that env_read does not map to a PEERLANE_* variable: how messaging
// interprets those that it supports, and which ones it ignores.
//
// Owns: nothing. Threads: any; every call reads the environment again. Errors: none.
#pragma once

#include <string>
#include <vector>

namespace pl::messaging {

// Converts a value of MV2_PROCESS_TO_RAIL_MAPPING, "mlx5_0:mlx5_3", to a list of UCX net devices, "mlx5_0:1,mlx5_3:1". The
// ranks of a node use them in turn. Empty for the other forms of the variable (numbers, BUNCH, SCATTER).
std::string rails_of_mapping(const std::string& mapping);

struct foreign_rails {
  std::string devices;       // in the format of PEERLANE_LINK_RAILS; empty: no variable names an adapter of this machine
  bool is_one_each = false;  // each rank of the node uses one of them
};

// Reads MV2_PROCESS_TO_RAIL_MAPPING, MV2_IBA_HCA (mlx5_0:mlx5_1) and OMPI_MCA_btl_openib_if_include (mlx5_0:1,mlx5_1), in
// this order, and uses the first that names adapters of this machine. `adapters`: the sysfs folder that lists them.
foreign_rails rails_from_environment(const std::string& adapters = "/sys/class/infiniband");

// UCX_IB_GPU_DIRECT_RDMA=n: adapters must not access GPU memory.
bool forbids_gpu_rdma();

// Returns one line for each variable that is set but not supported; it names the variable to set instead.
std::vector<std::string> unused_settings(const std::string& adapters = "/sys/class/infiniband");

}  // namespace pl::messaging
