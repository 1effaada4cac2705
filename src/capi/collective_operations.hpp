// SPDX-License-Identifier: Apache-2.0
// Collectives under way as operations (peerlane/operation.h).
#pragma once

#include "capi/open_comm.hpp"

namespace pl {

// Keeps what was begun and writes its operation. `bytes`: what the caller gave, for the info.
int keep_collective(peerlane_comm_t comm, open_comm& communicator, collectives::operation&& begun, std::uint64_t bytes,
                    peerlane_op_t* op);

// Calls the functions of collectives that have ended; cheap without one that has a function.
void call_ended_collectives(open_comm& communicator);
// Ends what is under way, as peerlane_op_release(). Not beside other calls.
void end_collectives(open_comm& communicator);

}  // namespace pl
