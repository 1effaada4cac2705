// SPDX-License-Identifier: Apache-2.0
// The bytes of a pipelined message: from device memory to the shared ring, and from there to their destination. Two
// chunks are in flight at a time, by the planner's fastest method (DMA channels if available), and each is announced
// when it ends.
#pragma once

#include "compat/mpi/pieces.hpp"
#include "compat/mpi/pipeline_peers.hpp"

namespace pl::mpi {

// Copies all of `device_rows` (device addresses) into the message's shared memory. Returns when everything has been
// copied, so the caller may change its buffer. Waits for the receiver only while that takes something
// (pipeline_format.hpp). On failure the receiver is told.
status send_rows(pipeline_peers& peers, const outgoing_message& message, const pieces& device_rows);

// Where the bytes go. Rows are addresses, in the order of the message, and have at least as many bytes.
enum class place_kind : std::uint8_t { device, host };

// Copies the message into `rows` and releases the slot. EPIPE: its sender has ended, or could not read its data.
status receive_rows(pipeline_peers& peers, const incoming_message& message, const pieces& rows, place_kind kind);

// The message is not wanted, because the receive has too little room.
void drop_message(const incoming_message& message) noexcept;

}  // namespace pl::mpi
