// SPDX-License-Identifier: Apache-2.0
// Checks the system's limits before a server starts.
#pragma once

#include <string>

#include "base/memory_limit.hpp"
#include "base/status.hpp"
#include "store/server/server_config.hpp"

namespace pl::store_server {

// Raises the limit as far as the system allows. Connections must use descriptors below the returned number; the rest is
// for the engine.
int raise_descriptor_limit();
// EMFILE if the store's own files leave no room for a client, below what raise_descriptor_limit() returned. Asked when
// all of them are open.
status check_descriptors(int limit);
// ENOMEM if the address space (ulimit -v) is too small for the threads and the memory tier.
status check_address_space(const server_config& config);
// What is wrong if the memory tier and the keys need more than the machine or the control group gives; empty if nothing is.
std::string memory_warning(const server_config& config, const memory_limit& limit);
// ENOTEMPTY, EPERM or ENOTDIR if the folder belongs to somebody else, EACCES if its files cannot be read.
status check_data_folder(const std::string& path);
// Checks the files that the settings name (the data folder and the TLS files) as `serve` does.
status check_files(const server_config& config);

}  // namespace pl::store_server
