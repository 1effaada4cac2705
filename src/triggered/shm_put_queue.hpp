// SPDX-License-Identifier: Apache-2.0
// The shared memory of a proxy channel between two processes of one node, one queue for each direction. The owner's streams
// write into it, and the *peer's* proxy thread takes it out. A small put costs the sender one kernel and the receiving CPU
// one poll and a few stores, and nothing on the receiver's stream.
//
//   owner's GPU                       peer's proxy thread                   peer's GPU
//   bytes, then doorbell  ---PCIe-->  sees the doorbell, stores bytes  -->  window, then the signal word
//
// The owner's channel thread describes each put beforehand (shm_put). Each small put that may be pending has its own place,
// so no stream waits for one. Larger puts go in chunks through slots, and a stream waits for a slot that may be in use. Each
// slot has a doorbell with the number of the chunk in it: the peer stores one chunk while the next ones arrive.
//
// Up to some 100 KiB one kernel writes all chunks, of 16 KiB, a block each: a copy and a doorbell write of the front end per
// chunk would take longer than the peer needs to store it. The copy engine writes the chunks of larger puts. A CPU stores
// some 12 bytes a ns into its GPU and the copy engine brings 50, but each copy and doorbell cost some 4.5 us: chunks of
// 64 KiB are the smallest that do not keep the CPU waiting. PEERLANE_STREAM_CHUNK and PEERLANE_STREAM_SPREAD exist for
// measuring both.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "copy/gpu_context.hpp"
#include "triggered/shared_memory.hpp"

namespace pl::triggered {

inline constexpr unsigned kShmPuts = 256;  // queued or not yet stored
inline constexpr unsigned kShmSlots = 32;
inline constexpr std::size_t kInlineBytes = 8 << 10;
inline constexpr std::size_t kShmChunkBytes = 128 << 10;  // at most
inline constexpr std::size_t kMinChunkBytes = 4 << 10;
inline constexpr std::size_t kSpreadChunkBytes = 16 << 10;
inline constexpr std::size_t kMaxSpreadBytes =
    kShmSlots / 2 * kSpreadChunkBytes;  // one half arrives while the other is taken

// How puts are divided into chunks.
struct put_chunking {
  std::size_t chunk_bytes = 64 << 10;          // kMinChunkBytes to kShmChunkBytes
  std::size_t spread_limit = kMaxSpreadBytes;  // one kernel writes puts up to this size; at most kMaxSpreadBytes
  unsigned doubled_from = 8;                   // puts of so many chunks go in chunks twice as large, if those fit
  // Reads the environment, within those bounds. Without kernels no put is written by one.
  static put_chunking from_environment(bool has_kernels);
  bool is_spread(std::uint64_t bytes) const noexcept { return bytes > kInlineBytes && bytes <= spread_limit; }
  // Each chunk costs the stream some microseconds: a 1 MiB round trip between two H200 takes 174 us in chunks of 128 KiB
  // and 268 in chunks of 64 KiB (docs/results/async).
  std::size_t chunk_of(std::uint64_t bytes) const noexcept {
    if (is_spread(bytes)) return kSpreadChunkBytes;
    return bytes >= doubled_from * chunk_bytes ? std::min(2 * chunk_bytes, kShmChunkBytes) : chunk_bytes;
  }
};

inline constexpr std::uint64_t chunks_of(std::uint64_t bytes, std::uint64_t chunk_bytes) noexcept {
  return bytes <= kInlineBytes ? 0 : (bytes - 1) / chunk_bytes + 1;
}

// Written by the owner's CPU before the put's first operation is queued. The peer validates it.
struct shm_put {
  std::uint64_t offset, bytes;
  std::uint32_t window, chunk_bytes;
};

// A count of the peer, with the use that it belongs to: a late peer cannot advance the count of another channel.
struct shm_count {
  static constexpr unsigned kUseBits = 16;
  std::atomic<std::uint64_t> word;

  static std::uint64_t make(std::uint64_t use, std::uint64_t count) noexcept { return use << (64 - kUseBits) | count; }
  std::uint64_t count() const noexcept { return word.load(std::memory_order_acquire) << kUseBits >> kUseBits; }
  // False: the queue belongs to another channel by now.
  bool advance(std::uint64_t use, std::uint64_t before, std::uint64_t after) noexcept {
    auto expected = make(use, before);
    return word.compare_exchange_strong(expected, make(use, after), std::memory_order_acq_rel);
  }
};

struct alignas(4096) shm_queue_memory {
  // By the owner's streams.
  alignas(64) std::uint64_t doorbell;  // whole puts
  std::uint64_t consumed;              // puts of the peer that have been released
  // The chunk in each slot; chunks are counted from 1, over all puts.
  alignas(64) std::uint64_t slot_doorbells[kShmSlots];
  // By the owner's threads.
  alignas(64) std::atomic<std::uint64_t> use;  // 0: the channel has ended, and its streams' writes are ignored
  alignas(64) std::atomic<std::uint64_t> published, armed;
  std::atomic<std::uint64_t> release, release_armed;
  // By the peer's proxy thread.
  alignas(64) shm_count stored;  // puts
  shm_count stored_chunks;       // of large ones
  shm_count acked;               // `consumed` as the peer has taken it
  alignas(64) shm_put puts[kShmPuts];
  alignas(4096) std::byte small[kShmPuts][kInlineBytes];
  alignas(4096) std::byte slots[kShmSlots][kShmChunkBytes];
};

// What the peer needs to open the queue. Plain bytes.
struct shm_queue_offer {
  shared_memory::name memory, wakeup;  // bytes 0: there is none
  std::uint64_t use = 0;
  std::uint64_t boot = 0, pid_namespace = 0;
};

// The shm queues of one context: shared memory registered with its GPU. They are kept for reuse, because only the
// application's threads may register memory.
class shm_queue_pool {
 public:
  explicit shm_queue_pool(const copy::gpu_context& context) : context_(context) {}
  ~shm_queue_pool();
  shm_queue_pool(const shm_queue_pool&) = delete;
  shm_queue_pool& operator=(const shm_queue_pool&) = delete;

 private:
  struct pinned {
    shared_memory memory;
    cu::device_ptr gpu = 0;
  };

 public:
  // A queue of this process. Returns to the pool on destruction, without a CUDA call; must not outlive the pool.
  class shm_queue {
   public:
    shm_queue() = default;
    shm_queue(shm_queue&& other) noexcept
        : pool_(std::exchange(other.pool_, nullptr)), pinned_(other.pinned_), use_(other.use_) {}
    shm_queue& operator=(shm_queue&&) = delete;
    ~shm_queue();
    shm_queue_memory* operator->() const noexcept { return reinterpret_cast<shm_queue_memory*>(pinned_->memory.data()); }
    cu::device_ptr gpu(const void* pointer) const noexcept {
      return pinned_->gpu + static_cast<std::uint64_t>(static_cast<const std::byte*>(pointer) - pinned_->memory.data());
    }
    const shared_memory::name& name() const noexcept { return pinned_->memory.own_name(); }
    std::uint64_t use() const noexcept { return use_; }

   private:
    friend class shm_queue_pool;
    shm_queue(shm_queue_pool* pool, pinned* pinned_memory, std::uint64_t use)
        : pool_(pool), pinned_(pinned_memory), use_(use) {}
    shm_queue_pool* pool_ = nullptr;
    pinned* pinned_ = nullptr;
    std::uint64_t use_ = 0;
  };
  // Returns a queue that is empty except for its use. Returns the driver's reason if the memory cannot be registered.
  result<shm_queue> take();

 private:
  result<pinned*> make();
  copy::gpu_context context_;
  std::mutex mutex_;
  std::uint64_t uses_ = 0;
  std::vector<std::unique_ptr<pinned>> all_;
  std::vector<pinned*> free_;
};

// A peer's queue, as this process reads it.
class shm_queue_view {
 public:
  static result<shm_queue_view> open(const shm_queue_offer& offer);
  shm_queue_memory* operator->() const noexcept { return reinterpret_cast<shm_queue_memory*>(memory_.data()); }
  std::uint64_t use() const noexcept { return use_; }

 private:
  shm_queue_view(shared_memory memory, std::uint64_t use) : memory_(std::move(memory)), use_(use) {}
  shared_memory memory_;
  std::uint64_t use_;
};

}  // namespace pl::triggered
