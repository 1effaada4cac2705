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
#include "triggered/receive_engine.hpp"

namespace pl::triggered {

inline constexpr unsigned kSlots = 16;
inline constexpr std::size_t kHeadBytes = 64;  // of a chunk_head, and of a chunk_tail
inline constexpr std::size_t kChunkBytes = 256 << 10;
inline constexpr std::size_t kSlotBytes = kHeadBytes + kChunkBytes + kHeadBytes;
// Each small put that may be pending has its own place, so that no stream waits for a place: a wait of the front end between
// a kernel and its put costs more than the memory.
inline constexpr unsigned kSmallSlots = 256;
inline constexpr std::size_t kSmallBytes = 8 << 10;
inline constexpr std::size_t kSmallSlotBytes = kHeadBytes + kSmallBytes + kHeadBytes;
// Memory into which messages are received.
inline constexpr unsigned kInboxSlots = 16;
inline constexpr std::size_t kSendBytes = kSmallSlots * kSmallSlotBytes + kSlots * kSlotBytes;
inline constexpr std::size_t kRingBytes = kSendBytes + kInboxSlots * kSlotBytes;

class staging_pool {
 private:
  struct pinned {
    copy::pinned_buffer memory;
    dma::region bound;  // bound for the receive engine; empty: there is no engine
  };

 public:
  explicit staging_pool(const copy::gpu_context& context) : context_(context) {}
  staging_pool(const staging_pool&) = delete;
  staging_pool& operator=(const staging_pool&) = delete;

  // The slots of one channel. Returns to the pool on destruction, without a CUDA call; must not outlive the pool.
  class ring {
   public:
    ring() = default;
    ring(ring&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), own_(std::move(other.own_)) {}
    ring& operator=(ring&&) = delete;
    ~ring();
    std::byte* slot(std::uint64_t chunk) const noexcept {
      return own_.memory.data() + kSmallSlots * kSmallSlotBytes + (chunk % kSlots) * kSlotBytes;
    }
    std::byte* small_slot(std::uint64_t put) const noexcept {
      return own_.memory.data() + put % kSmallSlots * kSmallSlotBytes;
    }
    std::byte* inbox(unsigned index) const noexcept { return own_.memory.data() + kSendBytes + index * kSlotBytes; }
    cu::device_ptr gpu(const std::byte* place) const noexcept { return own_.memory.device_address() + offset_of(place); }
    // Address for the receive engine; only if has_engine().
    bool has_engine() const noexcept { return own_.bound.address() != 0; }
    std::uint64_t engine_address(const std::byte* place) const noexcept { return own_.bound.address() + offset_of(place); }

   private:
    friend class staging_pool;
    ring(staging_pool* pool, pinned own) : pool_(pool), own_(std::move(own)) {}
    std::uint64_t offset_of(const std::byte* place) const noexcept {
      return static_cast<std::uint64_t>(place - own_.memory.data());
    }
    staging_pool* pool_ = nullptr;
    pinned own_;
  };
  // `engine`: null, or an engine that outlives the pool; the same in every call.
  result<ring> take(receive_engine* engine);

 private:
  copy::gpu_context context_;
  std::mutex mutex_;
  std::vector<pinned> free_;
};

}  // namespace pl::triggered
