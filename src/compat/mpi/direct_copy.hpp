// SPDX-License-Identifier: Apache-2.0
// A pipelined message whose bytes lie side by side on a GPU, to device memory: the receiver's copy engine reads them where
// they are, and nothing goes through host memory.
//
//   sender    none -> offered                 where its memory is (copy/memory_exchange.hpp)
//   receiver  offered -> taken -> done        it has read them; or -> refused: through the ring
//   sender    offered -> withdrawn            the receiver did not come soon: through the ring
//
// A send waits for its receiver here, as a large one of MPI's does, as long as the receiver works on earlier messages of
// this sender, and kOfferedNs longer; then it goes the other way, for the receiver may itself be sending. After offers in
// vain the next messages to this receiver make none.
#pragma once

#include "compat/mpi/pieces.hpp"
#include "compat/mpi/pipeline_peers.hpp"

namespace pl::mpi {

// True: the receiver has all bytes, or wants none, or has ended. False: they go through the ring.
bool send_directly(const outgoing_message& message, const pieces& device_rows);

// How long an offer stands; 0: as in programs. Before the first message.
void set_offer_patience_for_tests(std::uint64_t ns) noexcept;

// Ends an offer that is there: true if the bytes are at `device_rows`. False: they come through the ring.
bool receive_directly(const incoming_message& message, const pieces& device_rows);
// Of a receive into memory that no engine is asked for.
void refuse_direct(const incoming_message& message) noexcept;

}  // namespace pl::mpi
