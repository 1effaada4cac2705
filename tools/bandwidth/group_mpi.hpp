// SPDX-License-Identifier: Apache-2.0
// A group whose messages MPI carries, by the bridge library beside the program.
#pragma once

#include <memory>

#include "messaging/bootstrap/star_channel.hpp"

namespace pl::bandwidth {

// ENOENT: no bridge library, or it does not load (the reason is in the message). EPROTO: MPI knows another number of ranks
// than the launcher told, as when ranks are started by another MPI than the bridge is linked to. No MPI is left initialised.
result<std::unique_ptr<messaging::star_channel>> open_mpi(int expected_size);

}  // namespace pl::bandwidth
