// SPDX-License-Identifier: Apache-2.0
// How two preloaded libraries of one host hand a large message over.
//
//   sender                                              receiver
//     takes a slot and shared memory (a ring)
//     sends a header on the caller's communicator ---->  MPI matches it as it would have matched the message
//     copies chunk after chunk into the ring, `ready`    copies them out as they get ready, `taken`; the slot is free again
//
// A header has a size that no other message in flight between the two has: kHeaderBytes + its slot. So a probe, which sees
// nothing but the size, finds the slot and the message's true size there.
//
// The sender never waits for a receiver that does something else: MPI's rules let a receiver post a receive and then wait
// for anything, and the send must end all the same. If nothing is taken for kStallNs, the rest of the message gets memory of
// its own (the tail). Both live in files without a name and end with the two processes.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "copy/fd_memory.hpp"

namespace pl::mpi {

// Eager in Open MPI's and MPICH's shared memory, and more than receives of small messages have room for: those need not look
// for headers.
inline constexpr std::size_t kHeaderBytes = 3840;
inline constexpr unsigned kSlots = 256;
// A message is never smaller than a header: a receive that is too small for the header is too small for the message.
inline constexpr std::size_t kLeastPipelined = kHeaderBytes + kSlots;

using pipeline_nonce = std::array<std::byte, 16>;

inline constexpr std::array<char, 16> kHeaderMagic = {'p', 'e', 'e', 'r', 'l', 'a', 'n', 'e',
                                                      '-', 'm', 'p', 'i', '-', 'h', '0', '1'};

// The first bytes of a header; the rest is zero.
struct message_header {
  std::array<char, 16> magic = kHeaderMagic;
  pipeline_nonce nonce{};  // of this pair of processes
  std::int32_t rank = -1;  // of the sender in MPI_COMM_WORLD
  std::uint32_t slot = 0;
  std::uint64_t serial = 0;  // of the slot's use
  std::uint64_t bytes = 0;   // of the message
};

enum class direct_state : std::uint32_t { none, offered, taken, done, refused, withdrawn };  // direct_copy.hpp

// In memory that the sender makes for each receiver. Everything but `taken`, `is_done` and `direct` is the sender's.
struct alignas(128) message_slot {
  std::atomic<std::uint32_t> is_used;
  std::atomic<std::uint32_t> is_done;    // the receiver needs it no more
  std::atomic<std::uint32_t> is_failed;  // the sender could not read its data
  std::int32_t tag;
  std::uint64_t serial;
  std::uint64_t bytes;
  std::uint64_t ring_bytes;
  std::uint32_t ring_segment;
  std::uint32_t tail_segment;
  std::atomic<std::uint64_t> tail_from;  // this byte of the message and those behind it lie in the tail
  std::atomic<std::uint64_t> ready;      // bytes that may be read
  std::atomic<std::uint64_t> taken;      // bytes whose place in the ring is free again
  std::atomic<direct_state> direct;
  copy::fd_memory_location direct_place;  // once it is offered
  std::uint64_t direct_id, direct_pointer;
};
static_assert(sizeof(message_slot) == 128 && std::atomic<direct_state>::is_always_lock_free &&
              std::atomic<std::uint64_t>::is_always_lock_free);

inline constexpr std::uint64_t kNoTail = ~std::uint64_t{0};

// What a sender writes to the connection; each message has a descriptor.
struct pipeline_hello {
  enum class kind : std::uint32_t { slots = 0x534c4f32, segment = 0x53454730 };
  kind type = kind::slots;
  std::uint32_t segment = 0;
  std::uint64_t bytes = 0;
  pipeline_nonce nonce{};
  std::int32_t rank = -1;
  std::int32_t ranks = 0;  // of the job
};

}  // namespace pl::mpi
