// SPDX-License-Identifier: Apache-2.0
// A ring of chunks in shared memory between two processes of one node: the sender fills chunks and the receiver empties
// them, in order. The memory is an unnamed file that the receiver opens through the sender's /proc entry, so nothing is left
// behind when both processes have ended, even if they were killed.
//
// Owns: the mapping and its file. Threads: one at each end. The sender stores `published` with release after it has filled
// a chunk, the receiver stores `emptied` with release after its last access to one; each end acquires the other's counter.
// Errors: errno values of the system. Values written by the other end are not trusted.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.hpp"
#include "copy/planner.hpp"
#include "os/unique_fd.hpp"

namespace pl::messaging {

class shm_ring {
 public:
  static constexpr std::size_t kChunks = 8;
  // Identifies the ring for the process that opens it.
  struct name {
    std::int32_t pid = 0;
    std::int32_t fd = -1;
    std::uint64_t inode = 0;
    std::uint64_t chunk_bytes = 0;
  };
  // Describes a chunk's content. The receiver checks all of it against the ring's own limits.
  struct label {
    std::uint64_t op;      // the receiver's operation
    std::uint64_t offset;  // in the message
    std::uint64_t bytes;
    std::int32_t code;  // errno value if the sender could not read its memory; else 0
  };

  // Sender: creates a ring of kChunks chunks.
  static result<std::unique_ptr<shm_ring>> make(std::size_t chunk_bytes);
  // EPERM, ENOENT: the processes may not open each other's files (containers, non-dumpable processes); use another
  // transport.
  static result<std::unique_ptr<shm_ring>> open(const name& file);
  ~shm_ring();
  shm_ring(const shm_ring&) = delete;
  shm_ring& operator=(const shm_ring&) = delete;

  const name& own_name() const noexcept { return name_; }
  std::size_t chunk_bytes() const noexcept { return name_.chunk_bytes; }
  std::byte* chunk(std::uint64_t number) const noexcept { return chunks_ + number % kChunks * name_.chunk_bytes; }
  label& label_of(std::uint64_t number) const noexcept { return control_->labels[number % kChunks]; }
  std::atomic<std::uint64_t>& published() const noexcept { return control_->published; }
  std::atomic<std::uint64_t>& emptied() const noexcept { return control_->emptied; }
  // Pins the chunks for the copy engine of this GPU; only the first call has an effect. If pinning fails, copies still work
  // but are slower.
  void pin(copy::planner& planner, int device_ordinal);

 private:
  struct control {
    alignas(64) std::atomic<std::uint64_t> published;  // chunks, since the ring was made
    alignas(64) std::atomic<std::uint64_t> emptied;
    alignas(64) label labels[kChunks];
  };
  static constexpr std::size_t kControlBytes = 4096;
  static_assert(sizeof(control) <= kControlBytes);
  shm_ring() = default;
  status map();

  unique_fd fd_;
  name name_;
  control* control_ = nullptr;
  std::byte* chunks_ = nullptr;
  bool is_pin_tried_ = false;
  copy::planner::registration pinned_;
};

}  // namespace pl::messaging
