// SPDX-License-Identifier: Apache-2.0
// The system's limits for a server, checked before it starts.
#pragma once

#include "base/status.hpp"
#include "store/server/server_config.hpp"

namespace pl::store_server {

// As many descriptors as the system lets us have. The number that a connection's must stay below: the rest is for the
// engine.
int raise_descriptor_limit();
// ENOMEM: there is not enough address space (ulimit -v) for the threads and the memory tier.
status check_address_space(const server_config& config);
// ENOTEMPTY, EPERM, ENOTDIR: the folder is somebody else's.
status check_data_folder(const std::string& path);
// What `serve` would refuse of the files that the settings name: the data folder, and those of TLS.
status check_files(const server_config& config);

}  // namespace pl::store_server
