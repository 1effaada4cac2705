// SPDX-License-Identifier: Apache-2.0
// Collectives in progress as operations (peerlane/operation.h).
#pragma once

#include "capi/open_comm.hpp"

namespace pl {

// Stores what was begun and writes its operation. `bytes` is what the caller gave, for the info.
int keep_collective(peerlane_comm_t comm, open_comm& communicator, collectives::operation&& begun, std::uint64_t bytes,
                    peerlane_op_t* op);

// Calls the functions of collectives that have ended. Cheap if none has a function.
void call_ended_collectives(open_comm& communicator);
// Ends what is in progress, as peerlane_op_release() does. Not concurrently with other calls.
void end_collectives(open_comm& communicator);

}  // namespace pl
