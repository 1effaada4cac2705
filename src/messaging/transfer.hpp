// SPDX-License-Identifier: Apache-2.0
// The state of one side of a rendezvous: a part that all transports share, and the slice of the transport that moves the
// bytes.
//
// Owned by its operation from the RTS to the end. Allocated once for each rendezvous; eager messages have none.
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
  rts_body rts;                 // of the sender; valid until its packet has been sent
  transport* active = nullptr;  // moves the bytes; null: not chosen yet
  touch access = touch::any;
  int device_ordinal = -1;
  std::uint64_t wanted = 0;   // bytes to transfer
  std::uint64_t started = 0;  // bytes whose first step has begun
  std::uint64_t ended = 0;    // bytes whose last step has ended
  int code = 0;               // errno of the first failure; the remaining chunks are still exchanged, but not copied
  std::string message;
  bool is_receive = false;
  bool is_confirmed = false;  // the target has acknowledged the put, but the local send has not completed yet
  int confirmed_code = 0;
  bool is_retracted = false;      // sender: it has asked to cancel the message, and the receiver has not answered yet
  bool is_revoked = false;        // the caller has its memory back; remaining data bypasses it
  bool is_checked = false;        // receiver: all bytes were read; the sender must confirm that they were the message's
  std::uint64_t withdrawals = 0;  // the queue's count when the RTS was sent
  std::shared_ptr<const copy::fd_memory> handed;  // sender: stays until the receiver has answered
  // Receiver: UCX's handle of the message. Kept until the receive ends, because releasing it ends the send.
  remote_data data;
  std::variant<std::monostate, dma_transfer, cuda_ipc_transfer, cma_transfer, shm_ring_transfer, ucx_transfer> slice;

  // Records the first failure; later ones are ignored.
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
