// SPDX-License-Identifier: Apache-2.0
// The wire format between two messengers: a frame, then the payload. Over UCX a trailer follows, which says whether the
// payload could be read: it is taken from the sender's memory while the frame is already on its way.
//
// The format may change with every build. All processes of a job run the same one, and messenger::open compares kProtocol.
//
// Owns: nothing. Threads: any. Errors: whoever receives a frame checks its length.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pl::messaging {

constexpr std::uint32_t kProtocol = 0x504c000d;

// `code` of put_eager and atomic: a word behind the put whose frame came before it. It acts when that has ended well.
constexpr std::int32_t kBehindPut = 1;

enum class frame_kind : std::uint8_t {
  eager,        // a message with its data
  rts,          // ready to send: a message whose data waits at its sender (rts_body behind the frame)
  put_eager,    // data for a window (tag: offset, peer_op: window)
  put_rts,      // the same, waiting at its sender
  put_signal,   // as put_eager, with a word to change behind it (signal_body before the data)
  reply_eager,  // the answer to `get`: data for the operation peer_op
  reply_rts,
  get,           // requests a window's bytes (tag: offset, peer_op: window)
  atomic,        // request behind the frame
  atomic_reply,  // old value in tag
  rtr,           // ready to receive, to the sender of an RTS: send by this transport (rtr_body behind the frame)
  parts,         // to the sender of a transfer by UCX: it may send up to byte `tag`
  ats,           // acknowledges the transfer to its sender: the data has arrived, or `code`
  retract,       // by the sender: drops the RTS unless a receive has taken it
  withdraw,      // by the sender: its memory must not be read any more; answered by `ats`
  check,         // to the sender: its memory was read; was that still the message? (op, peer_op)
  checked,       // the answer to `check`: 0, or ECANCELED
  credit,        // nothing but the header's credit
  barrier,
  hello,  // connects
  bye,    // the process leaves
};

struct frame {
  frame_kind kind = frame_kind::hello;
  std::uint8_t is_remote : 1 = 0;  // an RTS that came with UCX's own, which takes more room at the receiver
  std::uint8_t space : 1 = 0;      // tag_space of a message
  std::uint16_t gpu = 0;           // short name of the GPU that the sender last used, 0 unknown: to see whether it is shared
  std::uint32_t source = 0;        // rank
  std::uint32_t sequence = 0;      // of the frames from one process to another: UCX lanes may overtake each other
  std::int32_t code = 0;
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;   // of the message
  std::uint64_t credit = 0;  // cost of all messages of the receiver that the sender's side has taken so far
  // The members below do not travel with `eager`.
  std::uint64_t op = 0;       // the sender's operation
  std::uint64_t peer_op = 0;  // the receiver's
};
static_assert(sizeof(frame) == 56);

// Length of a frame over UCX. An eager frame is shorter, so that a message of 8 KiB fits one of UCX's packets over verbs
// (8256 bytes).
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

// The frame of an eager message in a shm queue. The queue itself knows sender, order, length and outcome, so this is short:
// a message of up to 32 bytes lies in one cache line with it, one of up to 96 in the slot.
struct compact_frame {
  frame_kind kind = frame_kind::eager;  // as in `frame`, which all others have
  std::uint8_t space = 0;               // tag_space of the message
  std::uint16_t gpu = 0;
  std::uint32_t reserved_word = 0;
  std::uint64_t tag = 0;
  std::uint64_t credit = 0;
};
static_assert(sizeof(compact_frame) == 24);

}  // namespace pl::messaging
