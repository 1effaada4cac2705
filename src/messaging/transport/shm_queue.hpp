// SPDX-License-Identifier: Apache-2.0
// Packets between two processes of a node: a queue in shared memory for each direction of each pair, one writer, one reader.
//
// Why not UCX's shared memory: with its error handling on it has none, and its queues, one for each receiver, stop for ever
// when a process dies while it writes a packet, which takes a microsecond where the packet's bytes come from a GPU. Here a
// death ends the pair's own queue and nothing else, and what was complete in it is still read.
//
// A packet is a slot, and bytes in the data area if its body does not fit into the slot. The slot is one cache line and says
// by itself that it is there, so a short packet costs the reader that one line and nothing else:
//
//   slot   | mark 4 | body bytes 2 | head bytes 1 | outcome 1 | head, and the body behind it if both fit into 56 bytes |
//   data   a ring of bytes; each body begins on a line of its own and is contiguous: what is left at the end is skipped
//
// Marks: packet number n (from 0, modulo 2^32) lies in slot n % kSlots with the mark n + 1. A slot's first word never holds
// anything but marks, and before packet n is there it holds that of n - kSlots, or 0 in the first lap: neither is n + 1,
// also when the numbers wrap. So the writer has nothing to clear, and no byte of a message can pass for a mark.
//
// Lengths: both ends compute where a body lies from the lengths of all before it, so there is no position to trust.
//
// Order: all of a packet is written before its mark (release; the reader's load acquires). The reader counts what it has
// taken in `taken` (release) after its last access to the packet; the writer acquires that before it writes there again,
// and loads it only when by its last look there is no room.
//
// Withdrawals: a message that is only announced here is read in its sender's memory. A sender that takes the memory back
// counts that in `withdrawals` before it writes there; a reader that finds another count behind its read than in the
// announcement asks the sender whether what it has read was the message.
//
// Death: a writer has published a packet or has not, for there is no mark before all of the packet.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/status.hpp"
#include "os/unique_fd.hpp"

namespace pl::link {

// One direction, as one of its two ends sees it.
class shm_lane {
 public:
  static constexpr std::size_t kSlots = 512;  // 32 KiB: they stay in the caches of both ends
  static constexpr std::size_t kDataBytes = 256 << 10;
  static constexpr std::size_t kMostHead = 56;
  static constexpr std::size_t kMostBody = 0xffff;

  // Where a packet's parts go. The head, and a short body, are in the writer's own memory until publish(): bytes that come
  // from a GPU take a microsecond, in which a polling reader would take the slot's line away again.
  struct room {
    std::byte* head = nullptr;  // null: the reader is too far behind
    std::byte* body = nullptr;
  };
  // A packet in the lane's memory. The writer may change it at any time: for a reader that trusts its peer's process no
  // further than its own limits.
  struct view {
    const std::byte* head = nullptr;  // null: there is none
    std::size_t head_bytes = 0;
    const std::byte* body = nullptr;
    std::size_t body_bytes = 0;
    int outcome = 0;
  };

  shm_lane() = default;
  explicit shm_lane(void* at) noexcept : shared_(static_cast<shared*>(at)) {}
  bool is_open() const noexcept { return shared_ != nullptr; }
  void* address() const noexcept { return shared_; }

  // Writer: room for a packet of at most kMostHead and kMostBody bytes. publish() shows it to the reader, with an errno
  // value (0: the body is what it says); a room that is not published is forgotten by the next reserve().
  room reserve(std::size_t head_bytes, std::size_t body_bytes) noexcept;
  void publish(int outcome) noexcept;

  // Writer: from here on, what a reader finds in memory that was announced before may be something else.
  void count_withdrawal() noexcept {
    shared_->withdrawals.fetch_add(1, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // before the memory is written again
  }
  // Either end. By the reader: behind its reads.
  std::uint64_t withdrawals() const noexcept {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return shared_->withdrawals.load(std::memory_order_acquire);
  }
  // Writer: changes as long as the reader takes packets.
  std::uint64_t reader_position() const noexcept { return shared_->taken.load(std::memory_order_relaxed); }

  // Reader: the oldest packet; release() gives its room back.
  view peek() noexcept;
  void release() noexcept;

 private:
  friend struct lane_position;  // of shm_queue_test.cpp
  struct content {
    std::uint16_t body_bytes;
    std::uint8_t head_bytes;
    std::uint8_t outcome;
    std::byte inside[kMostHead];
  };
  struct alignas(64) slot {
    std::atomic<std::uint32_t> mark;
    content what;
  };
  static_assert(sizeof(slot) == 64);
  struct shared {
    alignas(4096) std::atomic<std::uint64_t> taken;  // packets << 32 | bytes of the data area, each modulo 2^32
    alignas(4096) std::atomic<std::uint64_t> withdrawals;
    alignas(4096) slot slots[kSlots];
    alignas(4096) std::byte data[kDataBytes];
  };
  // Of the data area, as both ends count them. `at` is where a body of so many bytes begins, `end` what is behind it.
  struct extent {
    std::uint32_t at, end;
  };
  static extent extent_behind(std::uint32_t position, std::size_t body_bytes) noexcept;
  slot& slot_of(std::uint32_t number) const noexcept { return shared_->slots[number % kSlots]; }
  bool has_room(std::uint32_t data_end) const noexcept {
    return number_ - static_cast<std::uint32_t>(taken_ >> 32) < kSlots &&
           data_end - static_cast<std::uint32_t>(taken_) <= kDataBytes;
  }

  shared* shared_ = nullptr;
  std::uint32_t number_ = 0;       // of the next packet
  std::uint32_t data_ = 0;         // own position in the data area
  std::uint32_t data_behind_ = 0;  // own position behind the packet in hand
  std::uint64_t taken_ = 0;        // writer: `taken` when last seen
  content fresh_{};                // writer: the packet in hand

 public:
  static constexpr std::size_t kBytes = sizeof(shared);
};

// What a process writes to: a lane for each rank, in one unnamed file that readers open through /proc.
class shm_outbox {
 public:
  struct name {
    std::int32_t pid = 0;
    std::int32_t fd = -1;
    std::uint64_t inode = 0;
  };
  static result<shm_outbox> make(int ranks);
  const name& own_name() const noexcept { return name_; }
  result<shm_lane> lane_to(int rank) const;
  // The lane of another process's outbox that leads to `rank` here. EPERM, ENOENT: the two may not reach each other's files.
  static result<shm_lane> open_lane(const name& of, int rank);
  static void close(shm_lane& lane) noexcept;

 private:
  unique_fd fd_;
  name name_;
};

}  // namespace pl::link
