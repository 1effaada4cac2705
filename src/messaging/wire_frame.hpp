// SPDX-License-Identifier: Apache-2.0
// What travels between two messengers: a frame, `payload` bytes behind it, and over the network a trailer that says whether
// those bytes could be read (they are taken from the sender's memory while the frame already leaves).
//
// A format of one build: processes of one job run the same one, and messenger::open compares kProtocol.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pl::link {

constexpr std::uint32_t kProtocol = 0x504c0004;

enum class frame_kind : std::uint8_t {
  eager,         // a message with its data
  announce,      // a message whose data waits at its sender (offer behind the frame)
  put_eager,     // data for a window (tag: offset, peer_op: window)
  put_announce,  // the same, waiting at its sender
  reply_eager,   // data for the operation peer_op: the answer to get
  reply_announce,
  get,           // ask for a window's bytes (tag: offset, peer_op: window)
  atomic,        // request behind the frame
  atomic_reply,  // old value in tag
  start,         // to the sender of an announcement: send this way (start_order behind the frame)
  parts,         // to the sender of a network transfer: it may send up to byte `tag`
  finish,        // to the sender: the data is there, or `code`
  retract,       // by the sender: forget the announcement, if nobody has taken it
  withdraw,      // by the sender: its memory is read no more, whoever has taken the announcement; answered by finish
  check,         // to the sender of what was read in its memory: was it still the message? (op, peer_op)
  checked,       // the answer: 0, or ECANCELED
  credit,        // nothing but the header's credit
  barrier,
  hello,  // connects
  bye,    // the process leaves
};

struct frame {
  frame_kind kind = frame_kind::hello;
  std::uint8_t is_remote = 0;  // an announcement with which UCX's own came, which takes more room at the receiver
  std::uint16_t gpu = 0;       // short name of the GPU that the sender last used, 0 unknown: to see whether it is shared
  std::uint32_t source = 0;    // rank
  std::uint32_t sequence = 0;  // of the frames from one process to another: lanes may overtake each other
  std::int32_t code = 0;
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;   // of the message
  std::uint64_t credit = 0;  // cost of all messages of the receiver that the sender's side has taken so far
  // What follows does not travel with `eager`.
  std::uint64_t op = 0;       // the sender's operation
  std::uint64_t peer_op = 0;  // the receiver's
};
static_assert(sizeof(frame) == 56);

// Of a frame as it travels over the network. A message of 8 KiB fits one of UCX's packets over verbs, of 8256 bytes, that
// way.
constexpr std::size_t frame_bytes(frame_kind kind) noexcept {
  return kind == frame_kind::eager ? offsetof(frame, op) : sizeof(frame);
}

using trailer = std::int32_t;

// Of an eager message in a lane, where the sender, the order, the length and whether its bytes could be read are known
// without: short, so that up to 32 bytes of the message lie in one cache line with it.
struct lane_frame {
  frame_kind kind = frame_kind::eager;  // as in `frame`, which all others have
  std::uint8_t reserved = 0;
  std::uint16_t gpu = 0;
  std::uint32_t reserved_word = 0;
  std::uint64_t tag = 0;
  std::uint64_t credit = 0;
};
static_assert(sizeof(lane_frame) == 24);

}  // namespace pl::link
