// SPDX-License-Identifier: Apache-2.0
// What two processes of one node share for a proxy channel, one lane for each direction: the streams of the owner write into
// it, and the service thread of the *peer* takes it out. So a small put is one kernel of the sender, one look and a few
// stores by one CPU, and nothing on the receiver's stream.
//
//   owner's GPU                       peer's service thread                 peer's GPU
//   bytes, then doorbell  ---PCIe-->  sees the doorbell, stores bytes  -->  window, then the signal word
//
// The channel's thread of the owner says before each put what it will be (lane_put). Small puts have a place each for their
// bytes, as many as puts may be under way, so that no stream ever waits for one; larger ones go in chunks through slots, for
// which streams wait when they may be in use. Each slot has a bell, which says what chunk lies in it: the peer stores one
// chunk while the next ones come.
//
// Up to some 100 KiB one kernel leaves all chunks, of 16 KiB, a block each: a copy and a bell of the front end for each
// would take longer than the peer does to store it. Of larger puts the copy engine leaves the chunks. A CPU stores some 12
// bytes a ns into its GPU and the copy engine brings 50, but each copy and bell cost some 4.5 us: so chunks of 64 KiB are
// the smallest that do not keep the CPU waiting. PEERLANE_STREAM_CHUNK and PEERLANE_STREAM_SPREAD are for measuring both.
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

namespace pl::stream {

inline constexpr unsigned kLanePuts = 256;  // queued or not landed
inline constexpr unsigned kLaneSlots = 32;
inline constexpr std::size_t kInlineBytes = 8 << 10;
inline constexpr std::size_t kLaneChunkBytes = 128 << 10;  // at most
inline constexpr std::size_t kLeastChunkBytes = 4 << 10;
inline constexpr std::size_t kSpreadChunkBytes = 16 << 10;
inline constexpr std::size_t kMostSpreadBytes = kLaneSlots / 2 * kSpreadChunkBytes;  // so that one comes while one is taken

// How puts are cut.
struct lane_cut {
  std::size_t chunk_bytes = 64 << 10;           // kLeastChunkBytes to kLaneChunkBytes
  std::size_t spread_limit = kMostSpreadBytes;  // puts up to here are left by one kernel; at most kMostSpreadBytes
  unsigned doubled_from = 8;                    // puts of so many chunks go in chunks twice as large, if those fit
  // What the environment says, within those bounds. Without kernels no put is left by one.
  static lane_cut from_environment(bool has_kernels);
  bool is_spread(std::uint64_t bytes) const noexcept { return bytes > kInlineBytes && bytes <= spread_limit; }
  // Each chunk costs the stream some microseconds: 1 MiB there and back between two H200 takes 174 us in chunks of 128 KiB
  // and 268 in those of 64 (docs/results/async).
  std::size_t chunk_of(std::uint64_t bytes) const noexcept {
    if (is_spread(bytes)) return kSpreadChunkBytes;
    return bytes >= doubled_from * chunk_bytes ? std::min(2 * chunk_bytes, kLaneChunkBytes) : chunk_bytes;
  }
};

inline constexpr std::uint64_t chunks_of(std::uint64_t bytes, std::uint64_t chunk_bytes) noexcept {
  return bytes <= kInlineBytes ? 0 : (bytes - 1) / chunk_bytes + 1;
}

// Written by the owner's CPU before the put's first operation is queued. The peer trusts none of it.
struct lane_put {
  std::uint64_t offset, bytes;
  std::uint32_t window, chunk_bytes;
};

// A count of the peer's with the use that it belongs to, so that a late peer cannot count in somebody else's channel.
struct lane_count {
  static constexpr unsigned kUseBits = 16;
  std::atomic<std::uint64_t> word;

  static std::uint64_t make(std::uint64_t use, std::uint64_t count) noexcept { return use << (64 - kUseBits) | count; }
  std::uint64_t count() const noexcept { return word.load(std::memory_order_acquire) << kUseBits >> kUseBits; }
  // False: the lane is used for something else by now.
  bool advance(std::uint64_t use, std::uint64_t before, std::uint64_t after) noexcept {
    auto expected = make(use, before);
    return word.compare_exchange_strong(expected, make(use, after), std::memory_order_acq_rel);
  }
};

struct alignas(4096) lane_memory {
  // By the owner's streams.
  alignas(64) std::uint64_t doorbell;           // whole puts
  std::uint64_t consumed;                       // puts of the peer that have been released
  alignas(64) std::uint64_t bells[kLaneSlots];  // the chunk that lies in the slot; they are counted from 1, over all puts
  // By the owner's threads.
  alignas(64) std::atomic<std::uint64_t> use;  // 0: over; what its streams write means nothing
  alignas(64) std::atomic<std::uint64_t> published, armed;
  std::atomic<std::uint64_t> release, release_armed;
  // By the peer's service thread.
  alignas(64) lane_count landed;  // puts
  lane_count landed_chunks;       // of large ones
  lane_count acked;               // `consumed` as the peer has taken it
  alignas(64) lane_put puts[kLanePuts];
  alignas(4096) std::byte small[kLanePuts][kInlineBytes];
  alignas(4096) std::byte slots[kLaneSlots][kLaneChunkBytes];
};

// Enough for the peer to find it. Plain bytes.
struct lane_offer {
  shared_memory::name memory, bell;  // bytes 0: there is none
  std::uint64_t use = 0;
  std::uint64_t boot = 0, pid_namespace = 0;
};

// The lanes of one context: shared memory registered with its GPU, kept and used again, because only the application's
// threads may register it.
class lane_pool {
 public:
  explicit lane_pool(const copy::gpu_context& context) : context_(context) {}
  ~lane_pool();
  lane_pool(const lane_pool&) = delete;
  lane_pool& operator=(const lane_pool&) = delete;

 private:
  struct pinned {
    shared_memory memory;
    cu::device_ptr gpu = 0;
  };

 public:
  // A lane of our own. Goes back by itself, without a CUDA call; must not outlive the pool.
  class lane {
   public:
    lane() = default;
    lane(lane&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), pinned_(other.pinned_), use_(other.use_) {}
    lane& operator=(lane&&) = delete;
    ~lane();
    lane_memory* operator->() const noexcept { return reinterpret_cast<lane_memory*>(pinned_->memory.data()); }
    cu::device_ptr gpu(const void* pointer) const noexcept {
      return pinned_->gpu + static_cast<std::uint64_t>(static_cast<const std::byte*>(pointer) - pinned_->memory.data());
    }
    const shared_memory::name& name() const noexcept { return pinned_->memory.own_name(); }
    std::uint64_t use() const noexcept { return use_; }

   private:
    friend class lane_pool;
    lane(lane_pool* pool, pinned* pinned_memory, std::uint64_t use) : pool_(pool), pinned_(pinned_memory), use_(use) {}
    lane_pool* pool_ = nullptr;
    pinned* pinned_ = nullptr;
    std::uint64_t use_ = 0;
  };
  // Empty but for its use. The driver's reason if the memory cannot be registered.
  result<lane> take();

 private:
  result<pinned*> make();
  copy::gpu_context context_;
  std::mutex mutex_;
  std::uint64_t uses_ = 0;
  std::vector<std::unique_ptr<pinned>> all_;
  std::vector<pinned*> free_;
};

// A peer's, as this process reads it.
class lane_view {
 public:
  static result<lane_view> open(const lane_offer& offer);
  lane_memory* operator->() const noexcept { return reinterpret_cast<lane_memory*>(memory_.data()); }
  std::uint64_t use() const noexcept { return use_; }

 private:
  lane_view(shared_memory memory, std::uint64_t use) : memory_(std::move(memory)), use_(use) {}
  shared_memory memory_;
  std::uint64_t use_;
};

}  // namespace pl::stream
