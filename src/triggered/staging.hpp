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
inline constexpr std::size_t kHeadBytes = 64;
inline constexpr std::size_t kChunkBytes = 256 << 10;
inline constexpr std::size_t kSlotBytes = kHeadBytes + kChunkBytes;

class staging_pool {
 public:
  explicit staging_pool(const copy::gpu_context& context) : context_(context) {}
  staging_pool(const staging_pool&) = delete;
  staging_pool& operator=(const staging_pool&) = delete;

  // kSlots slots for one channel. Returns to the pool on destruction, without a CUDA call; must not outlive the pool.
  class ring {
   public:
    ring() = default;
    ring(ring&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), memory_(std::move(other.memory_)) {}
    ring& operator=(ring&&) = delete;
    ~ring();
    std::byte* slot(std::uint64_t chunk) const noexcept { return memory_.data() + (chunk % kSlots) * kSlotBytes; }
    cu::device_ptr gpu_slot(std::uint64_t chunk) const noexcept {
      return memory_.device_address() + (chunk % kSlots) * kSlotBytes;
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
