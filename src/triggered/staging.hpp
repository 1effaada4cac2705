// SPDX-License-Identifier: Apache-2.0
// Pinned slots between a stream and the messages of the proxy thread. The context keeps them for reuse, because only the
// application's threads may pin and unpin memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "copy/pinned_buffer.hpp"

namespace pl::triggered {

inline constexpr unsigned kSlots = 16;
inline constexpr std::size_t kHeadBytes = 64;  // of a chunk_head, and of a chunk_tail
inline constexpr std::size_t kChunkBytes = 256 << 10;
inline constexpr std::size_t kSlotBytes = kHeadBytes + kChunkBytes + kHeadBytes;
// Each small put that may be pending has a place of its own, so that no stream waits for one: a wait of the front end
// between a kernel and its put costs more than what it protects.
inline constexpr unsigned kSmallSlots = 256;
inline constexpr std::size_t kSmallBytes = 8 << 10;
inline constexpr std::size_t kSmallSlotBytes = kHeadBytes + kSmallBytes;
inline constexpr std::size_t kRingBytes = kSmallSlots * kSmallSlotBytes + kSlots * kSlotBytes;

class staging_pool {
 public:
  explicit staging_pool(const copy::gpu_context& context) : context_(context) {}
  staging_pool(const staging_pool&) = delete;
  staging_pool& operator=(const staging_pool&) = delete;

  // The slots of one channel. Returns to the pool on destruction, without a CUDA call; must not outlive the pool.
  class ring {
   public:
    ring() = default;
    ring(ring&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), memory_(std::move(other.memory_)) {}
    ring& operator=(ring&&) = delete;
    ~ring();
    std::byte* slot(std::uint64_t chunk) const noexcept {
      return memory_.data() + kSmallSlots * kSmallSlotBytes + (chunk % kSlots) * kSlotBytes;
    }
    std::byte* small_slot(std::uint64_t put) const noexcept { return memory_.data() + put % kSmallSlots * kSmallSlotBytes; }
    cu::device_ptr gpu(const std::byte* place) const noexcept {
      return memory_.device_address() + static_cast<std::uint64_t>(place - memory_.data());
    }

   private:
    friend class staging_pool;
    ring(staging_pool* pool, copy::pinned_buffer memory) : pool_(pool), memory_(std::move(memory)) {}
    staging_pool* pool_ = nullptr;
    copy::pinned_buffer memory_;
  };
  result<ring> take();

 private:
  copy::gpu_context context_;
  std::mutex mutex_;
  std::vector<copy::pinned_buffer> free_;
};

}  // namespace pl::triggered
