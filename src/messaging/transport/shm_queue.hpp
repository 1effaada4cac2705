// SPDX-License-Identifier: Apache-2.0
// Packet queues in shared memory between the processes of a node. Each pair of processes has one queue for each direction,
// with one writer and one reader.
//
// Why not the shared-memory transport of UCX: UCX does not use it with error handling enabled. It also has one queue for
// each receiver, which stalls for ever if a process dies while it writes a packet (a microsecond, if the bytes come from a
// GPU). With one queue for each pair, a death ends only the queues of the dead process, and complete packets in them are
// still read.
//
// A packet is a slot, plus bytes in the data area if its body does not fit into the slot. A slot is two cache lines with one
// ready mark; a short packet uses only the first line:
//
//   slot   | mark 4 | body bytes 2 | head bytes 1 | outcome 1 | head, and the body behind it if both fit into 120 bytes |
//   data   a ring of bytes; each body starts on its own cache line and is contiguous, so the end of the ring may be skipped
//
// Marks: packet number n (from 0, modulo 2^32) is in slot n % kSlots and has the mark n + 1. The first word of a slot only
// ever contains marks. Before packet n it contains the mark of packet n - kSlots, or 0 in the first lap; neither equals n +
// 1, even when the numbers wrap. So the writer need not clear slots, and no byte of a message can look like a mark.
//
// Lengths: both ends compute the position of a body from the preceding lengths; no position is read from shared memory.
//
// Memory order: the writer stores the mark with release after the whole packet; the reader loads it with acquire. The reader
// stores `taken` with release after its last access to a packet; the writer loads it with acquire before it reuses the
// space, and only when the value it last saw leaves no room.
//
// Withdrawals: the receiver reads a rendezvous message in its sender's memory. A sender that takes the memory back
// increments `withdrawals` before it writes there. A reader whose count after the read differs from the one in the RTS asks
// the sender whether it has read the message.
//
// Waiting: a reader that goes to sleep stores the reasons to wake it in `waiter`, makes every process of the node pass a
// barrier (process_barrier.hpp), and checks the queue once more. The writer reads `waiter` after each packet, and wakes the
// reader.
//
// Death: a packet is either published or absent, because the mark is written last.
//
// Owns: a set owns its file, a queue its mapping until close(). Threads: one writer and one reader, each in its own process.
// Errors: errno values of the system, when a queue is made or opened. A packet contains its own errno value.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/status.hpp"
#include "messaging/transport/short_copy.hpp"
#include "os/process_barrier.hpp"
#include "os/unique_fd.hpp"

namespace pl::messaging {

// One end of one direction.
class shm_queue {
 public:
  static constexpr std::size_t kSlots = 256;  // 32 KiB, which stay in the caches of both ends
  static constexpr std::size_t kDataBytes = 256 << 10;
  static constexpr std::size_t kMaxHead = 56;
  static constexpr std::size_t kMaxBody = 0xffff;
  static constexpr std::size_t kSlotBytes = 120;  // head and body up to this total need no data area

  // Where to write the head and body of a packet. The head and a short body stay in private memory of the writer until
  // publish(): reading bytes from a GPU takes a microsecond, during which a polling reader would take the slot's cache line
  // away.
  struct room {
    std::byte* head = nullptr;  // null: the reader is too far behind
    std::byte* body = nullptr;
  };
  // A packet in the queue's memory. The writer may change it at any time, so the reader checks every length against its own
  // limits.
  struct view {
    const std::byte* head = nullptr;  // null: there is none
    std::size_t head_bytes = 0;
    const std::byte* body = nullptr;
    std::size_t body_bytes = 0;
    int outcome = 0;
  };

  shm_queue() = default;
  explicit shm_queue(void* mapping) noexcept : shared_(static_cast<shared*>(mapping)) {}
  bool is_open() const noexcept { return shared_ != nullptr; }
  void* address() const noexcept { return shared_; }

  // Writer: room for a packet of at most kMaxHead and kMaxBody bytes. publish() makes it visible to the reader with an errno
  // value (0: the body is valid). The next reserve() discards a room that was not published.
  room reserve(std::size_t head_bytes, std::size_t body_bytes) noexcept;
  void publish(int outcome) noexcept;

  // Writer: reserve() and publish() in one call, for a body in host memory. False: no room.
  template <class Head>
  bool put(const Head& head, const void* body, std::size_t body_bytes) noexcept;

  // Writer: call it before the memory of a message whose RTS was sent is written again.
  void count_withdrawal() noexcept {
    shared_->withdrawals.fetch_add(1, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // before the memory is written again
  }
  // Either end. The reader calls it after its reads.
  std::uint64_t withdrawals() const noexcept {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return shared_->withdrawals.load(std::memory_order_acquire);
  }
  // Writer: changes whenever the reader takes packets.
  std::uint64_t reader_position() const noexcept { return shared_->taken.load(std::memory_order_relaxed); }

  // Reader: announces that it sleeps until one of these reasons wakes it.
  static constexpr std::uint32_t kForPackets = 1, kForRoom = 2;  // kForRoom: in the queue of the other direction
  void set_waiter(std::uint32_t reasons) noexcept { shared_->waiter.store(reasons, std::memory_order_relaxed); }
  // Writer, after publish(): the reasons for which the reader sleeps; 0: it is awake.
  std::uint32_t waiter() const noexcept {
    process_barrier::light();
    return shared_->waiter.load(std::memory_order_relaxed);
  }
  // Writer: takes the reasons, so that a reader is woken only once.
  std::uint32_t take_waiter() noexcept { return shared_->waiter.exchange(0, std::memory_order_acq_rel); }

  // Reader: the oldest packet, which stays valid until release().
  view peek() noexcept;
  void release() noexcept;

 private:
  friend struct queue_position;  // of shm_queue_test.cpp
  struct content {
    std::uint16_t body_bytes;
    std::uint8_t head_bytes;
    std::uint8_t outcome;
    std::byte inside[kSlotBytes];
  };
  struct alignas(128) slot {
    std::atomic<std::uint32_t> mark;
    content packet;
  };
  static_assert(sizeof(slot) == 128);
  struct shared {
    alignas(4096) std::atomic<std::uint64_t> taken;  // packets << 32 | bytes of the data area, each modulo 2^32
    alignas(4096) std::atomic<std::uint64_t> withdrawals;
    alignas(64) std::atomic<std::uint32_t> waiter;
    alignas(4096) slot slots[kSlots];
    alignas(4096) std::byte data[kDataBytes];
  };
  // Positions in the data area: [begin, end) of a body.
  struct extent {
    std::uint32_t begin, end;
  };
  bool find_room(std::uint32_t data_end) noexcept;
  void find_body(view& packet) noexcept;
  static extent extent_behind(std::uint32_t position, std::size_t body_bytes) noexcept;
  slot& slot_of(std::uint32_t number) const noexcept { return shared_->slots[number % kSlots]; }
  bool has_room(std::uint32_t data_end) const noexcept {
    return number_ - static_cast<std::uint32_t>(taken_ >> 32) < kSlots &&
           data_end - static_cast<std::uint32_t>(taken_) <= kDataBytes;
  }

  shared* shared_ = nullptr;
  std::uint32_t number_ = 0;       // number of the next packet
  std::uint32_t data_ = 0;         // own position in the data area
  std::uint32_t data_behind_ = 0;  // own position after the current packet
  std::uint64_t taken_ = 0;        // writer: last value of `taken` that it loaded
  content fresh_{};                // writer: the current packet, until publish()

 public:
  static constexpr std::size_t kBytes = sizeof(shared);
};

inline shm_queue::extent shm_queue::extent_behind(std::uint32_t position, std::size_t body_bytes) noexcept {
  constexpr std::size_t kLine = 64;
  const std::size_t needed = (body_bytes + kLine - 1) & ~(kLine - 1);
  const std::size_t inside = position % kDataBytes;
  const std::uint32_t begin =
      inside + needed > kDataBytes ? position + static_cast<std::uint32_t>(kDataBytes - inside) : position;
  return {begin, begin + static_cast<std::uint32_t>(needed)};
}

inline bool shm_queue::find_room(std::uint32_t data_end) noexcept {
  if (has_room(data_end)) return true;
  taken_ = shared_->taken.load(std::memory_order_acquire);
  return has_room(data_end);
}

template <class Head>
bool shm_queue::put(const Head& head, const void* body, std::size_t body_bytes) noexcept {
  static_assert(sizeof head <= kMaxHead && sizeof head % 8 == 0);
  const bool fits_slot = sizeof head + body_bytes <= kSlotBytes;
  if (!fits_slot) [[unlikely]] {
    const extent place = extent_behind(data_, body_bytes);
    if (!find_room(place.end)) return false;
    // Written before the slot, whose cache line a polling reader takes away.
    std::memcpy(shared_->data + place.begin % kDataBytes, body, body_bytes);
    data_ = place.end;
  } else if (!find_room(data_)) {
    return false;
  }
  slot& entry = slot_of(number_);
  auto& packet = entry.packet;
  packet.body_bytes = static_cast<std::uint16_t>(body_bytes);
  packet.head_bytes = sizeof head;
  packet.outcome = 0;
  std::memcpy(packet.inside, &head, sizeof head);
  if (fits_slot) copy_short(packet.inside + sizeof head, body, body_bytes);
  entry.mark.store(++number_, std::memory_order_release);
  return true;
}

inline shm_queue::view shm_queue::peek() noexcept {
  slot& entry = slot_of(number_);
  if (entry.mark.load(std::memory_order_acquire) != number_ + 1) return {};
  const content& stored = entry.packet;
  view out{stored.inside, stored.head_bytes, nullptr, stored.body_bytes, stored.outcome};
  // An impossible length ends the queue, not this process.
  if (out.head_bytes > kMaxHead) return {};
  data_behind_ = data_;
  if (out.head_bytes + out.body_bytes <= kSlotBytes) out.body = out.head + out.head_bytes;
  else find_body(out);
  return out;
}

inline void shm_queue::release() noexcept {
  data_ = data_behind_;
  shared_->taken.store(std::uint64_t{++number_} << 32 | data_, std::memory_order_release);
}

// The queues that one process writes to, one for each rank, in an unnamed file that readers open through /proc.
class shm_queue_set {
 public:
  struct name {
    std::int32_t pid = 0;
    std::int32_t fd = -1;
    std::uint64_t inode = 0;
  };
  static result<shm_queue_set> make(int ranks);
  const name& own_name() const noexcept { return name_; }
  result<shm_queue> queue_to(int rank) const;
  // The queue to `rank` of another process's set. EPERM, ENOENT: the processes may not open each other's files.
  static result<shm_queue> open_queue(const name& file, int rank);
  static void close(shm_queue& queue) noexcept;

 private:
  unique_fd fd_;
  name name_;
};

}  // namespace pl::messaging
