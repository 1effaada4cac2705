// SPDX-License-Identifier: Apache-2.0
// Packets between two processes of a node: a queue in shared memory for each direction of each pair, one writer, one reader.
//
// Why not UCX's shared memory: with its error handling on it has none, and its queues, one for each receiver, stop for ever
// when a process dies while it writes a packet, which takes a microsecond where the packet's bytes come from a GPU. Here a
// death ends the pair's own queue and nothing else, and what was complete in it is still read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "status.hpp"
#include "unique_fd.hpp"

namespace pl::link {

// One direction, as one of its two ends sees it.
class shm_lane {
 public:
  static constexpr std::size_t kDataBytes = 256 << 10;
  static constexpr std::size_t kBytes = kDataBytes + 4096;

  shm_lane() = default;
  explicit shm_lane(void* at) noexcept : control_(static_cast<control*>(at)), data_(static_cast<std::byte*>(at) + 4096) {}
  bool is_open() const noexcept { return control_ != nullptr; }
  void* address() const noexcept { return control_; }

  // Writer: room for a packet, contiguous; null: the reader is too far behind. publish() shows it to the reader.
  std::byte* reserve(std::size_t bytes) noexcept;
  void publish() noexcept { control_->written.store(at_ = reserved_, std::memory_order_release); }

  // Reader: the oldest packet; null if there is none. release() gives its room back.
  const std::byte* peek(std::size_t& bytes) noexcept;
  void release() noexcept { control_->read.store(at_ = reserved_, std::memory_order_release); }

 private:
  struct control {
    alignas(64) std::atomic<std::uint64_t> written;
    alignas(64) std::atomic<std::uint64_t> read;
  };
  static constexpr std::size_t kLine = 64;
  static constexpr std::uint64_t kSkip = ~0ull;  // the rest up to the end of the data is empty
  static std::size_t record(std::size_t bytes) noexcept {
    return (bytes + sizeof(std::uint64_t) + kLine - 1) & ~(kLine - 1);
  }

  control* control_ = nullptr;
  std::byte* data_ = nullptr;
  std::uint64_t at_ = 0;        // own position
  std::uint64_t reserved_ = 0;  // own position behind the packet in hand
  std::uint64_t other_ = 0;     // the other end's position when last seen: its line is not fetched for each packet
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
