// SPDX-License-Identifier: Apache-2.0
// The wire format between two messengers: a frame, then the payload. Over UCX a trailer follows, which says whether the
// payload could be read, because it is read from the sender's memory while the frame is already being sent.
//
// The format may change with every build. All processes of a job must use the same one; messenger::open compares kProtocol.
//
// Owns: nothing. Threads: any. Errors: the receiver of a frame must check its length.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pl::messaging {

constexpr std::uint32_t kProtocol = 0x504c000d;

// Value of `code` in put_eager and atomic: the word of the put in the preceding frame. It is changed when that put has
// succeeded.
constexpr std::int32_t kBehindPut = 1;

enum class frame_kind : std::uint8_t {
  eager,        // a message with its data
  rts,          // ready to send: a message whose data is still at its sender (followed by rts_body)
  put_eager,    // data for a window (tag: offset, peer_op: window)
  put_rts,      // data for a window that is still at its sender
  put_signal,   // put_eager with a word to change after it (signal_body before the data)
  reply_eager,  // the answer to `get`: data for the operation peer_op
  reply_rts,
  get,           // requests a window's bytes (tag: offset, peer_op: window)
  atomic,        // followed by the request
  atomic_reply,  // the old value is in `tag`
  rtr,           // ready to receive, to the sender of an RTS: send with this transport (followed by rtr_body)
  parts,         // to the sender of a transfer over UCX: it may send up to byte `tag`
  ats,           // acknowledges the transfer to its sender: the data has arrived, or `code`
  retract,       // by the sender: drops the RTS unless a receive has taken it
  withdraw,      // by the sender: its memory must no longer be read; answered with `ats`
  check,         // to the sender: its memory was read; asks whether it was still the message (op, peer_op)
  checked,       // the answer to `check`: 0, or ECANCELED
  credit,        // only the credit in the frame
  barrier,
  hello,  // connects
  bye,    // the process leaves
};

struct frame {
  frame_kind kind = frame_kind::hello;
  std::uint8_t is_remote : 1 = 0;  // an RTS sent with UCX's rendezvous, which takes more memory at the receiver
  std::uint8_t space : 1 = 0;      // tag_space of a message
  std::uint16_t gpu = 0;           // short name of the GPU that the sender used last (gpu_sharing.hpp); 0: unknown
  std::uint32_t source = 0;        // rank
  std::uint32_t sequence = 0;      // number of the frame for this receiver, because UCX lanes may reorder frames
  std::int32_t code = 0;
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;   // of the message
  std::uint64_t credit = 0;  // total cost of the receiver's messages that the sender of this frame has taken so far
  // The members below are not sent with `eager`.
  std::uint64_t op = 0;       // the sender's operation
  std::uint64_t peer_op = 0;  // the receiver's
};
static_assert(sizeof(frame) == 56);

// Length of a frame over UCX, in bytes. An eager frame is shorter, so that a message of 8 KiB fits into one of UCX's packets
// over verbs (8256 bytes).
constexpr std::size_t frame_bytes(frame_kind kind) noexcept {
  return kind == frame_kind::eager ? offsetof(frame, op) : sizeof(frame);
}

// The word of a put_signal frame.
struct signal_body {
  std::uint64_t window = 0;
  std::uint64_t offset = 0;
  std::uint64_t value = 0;
  std::uint64_t kind = 0;  // signal_kind
};

using trailer = std::int32_t;

// The frame of an eager message in a shm queue. It is short because the queue provides sender, order, length and outcome:
// with a message of up to 32 bytes it fits into one cache line, with up to 96 bytes into the slot.
struct compact_frame {
  frame_kind kind = frame_kind::eager;  // first member, as in `frame`, which all other kinds use
  std::uint8_t space = 0;               // tag_space of the message
  std::uint16_t gpu = 0;
  std::uint32_t reserved_word = 0;
  std::uint64_t tag = 0;
  std::uint64_t credit = 0;
};
static_assert(sizeof(compact_frame) == 24);

}  // namespace pl::messaging
