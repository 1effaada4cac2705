// SPDX-License-Identifier: Apache-2.0
// A pipelined message from contiguous memory of a GPU to device memory: the receiver's copy engine reads the bytes in
// place, and nothing goes through host memory.
//
//   sender    none -> offered                 where its memory is (copy/memory_exchange.hpp)
//   receiver  offered -> taken -> done        it has read them; or -> refused: through the ring
//   sender    offered -> withdrawn            the receiver did not come soon: through the ring
//
// A send waits for its receiver, as a large one of MPI's does, while the receiver works on earlier messages of this
// sender, and kOfferedNs longer. Then it uses the ring, because the receiver may itself be sending. After unsuccessful
// offers the next messages to this receiver make none.
#pragma once

#include "compat/mpi/pieces.hpp"
#include "compat/mpi/pipeline_peers.hpp"

namespace pl::mpi {

// Returns true if the receiver has all bytes, wants none, or has ended. Returns false if the bytes must go through the
// ring.
bool send_directly(const outgoing_message& message, const pieces& device_rows);

// How long an offer is valid; 0: as in production. Call before the first message.
void set_offer_timeout_for_tests(std::uint64_t ns) noexcept;

// Ends an offer if there is one. Returns true if the bytes are at `device_rows`, false if they come through the ring.
bool receive_directly(const incoming_message& message, const pieces& device_rows);
// For a receive into memory that no engine can write.
void refuse_direct(const incoming_message& message) noexcept;

}  // namespace pl::mpi
