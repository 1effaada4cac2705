// SPDX-License-Identifier: Apache-2.0
// One side of a rendezvous: what all transports share, and the slice that belongs to the one that moves the bytes.
//
// Owned by its operation, from the RTS to the end. Allocated once for a rendezvous; an eager message has none.
// Threads: the messenger's lock guards it. Errors: the first failure is kept until the transfer ends.
#pragma once

#include <string>
#include <variant>

#include "messaging/rndv_frame.hpp"
#include "messaging/transport/cma_rndv.hpp"
#include "messaging/transport/cuda_ipc_rndv.hpp"
#include "messaging/transport/dma_rndv.hpp"
#include "messaging/transport/shm_ring_rndv.hpp"
#include "messaging/transport/ucx_rndv.hpp"

namespace pl::messaging {

struct transfer_state {
  rts_body rts;                 // the sender's, valid until its packet has left
  transport* active = nullptr;  // moves the bytes; null: not chosen yet
  touch access = touch::any;
  int device_ordinal = -1;
  std::uint64_t wanted = 0;   // bytes that move
  std::uint64_t started = 0;  // bytes whose first step has begun
  std::uint64_t ended = 0;    // bytes whose last step is over
  int code = 0;               // first failure: the remaining chunks still move, without being copied
  std::string message;
  bool is_receive = false;
  bool is_confirmed = false;  // the target of a put has acknowledged it, and the local send has not completed yet
  int confirmed_code = 0;
  bool is_retracted = false;      // sender: cancelling was requested and the receiver has not answered yet
  bool is_revoked = false;        // the caller has its memory back: what still moves bypasses it
  bool is_checked = false;        // all was read in the sender's memory, which must still confirm that it was the message
  std::uint64_t withdrawals = 0;  // the queue's count when the RTS was sent
  std::shared_ptr<const copy::handed_memory> handed;  // sender: stays until the receiver has answered
  // Receiver: UCX's handle of the message. The send ends when it is released, so it is kept to the end of the receive.
  remote_data data;
  std::variant<std::monostate, dma_transfer, cuda_ipc_transfer, cma_transfer, shm_ring_transfer, ucx_transfer> slice;

  void fail(int reason, std::string sentence) {
    if (code != 0) return;
    code = reason;
    message = std::move(sentence);
  }
};

// The slice of the transport that the operation's transfer was started with.
template <class Slice>
Slice& slice_of(const operation& op) {
  return *std::get_if<Slice>(&op.transfer->slice);
}

}  // namespace pl::messaging
