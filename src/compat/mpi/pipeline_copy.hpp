// SPDX-License-Identifier: Apache-2.0
// The bytes of a pipelined message: device memory to the shared ring, and from there to where they belong. Two chunks are
// under way at a time, by the planner's quickest way (DMA channels where there are any), and each is told as it ends.
#pragma once

#include "compat/mpi/pieces.hpp"
#include "compat/mpi/pipeline_peers.hpp"

namespace pl::mpi {

// Copies all of `device_rows` (device addresses) into the message's shared memory. Returns when everything has been copied:
// the caller may change its buffer. Waits for the receiver only while that takes something (pipeline_format.hpp). On failure
// the receiver is told.
status send_rows(pipeline_peers& peers, const outgoing_message& message, const pieces& device_rows);

// Where the bytes go. Rows are addresses, in the order of the message, and have at least as many bytes.
enum class place_kind : std::uint8_t { device, host };

// Copies the message into `rows` and gives the slot back. EPIPE: its sender has ended, or could not read its data.
status receive_rows(pipeline_peers& peers, const incoming_message& message, const pieces& rows, place_kind kind);

// The message is not wanted (the receive has too little room).
void drop_message(const incoming_message& message) noexcept;

}  // namespace pl::mpi
