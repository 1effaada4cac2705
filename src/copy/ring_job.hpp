// SPDX-License-Identifier: Apache-2.0
// One copy between pageable host memory and a GPU through a ring of pinned chunks: an engine moves chunk i between the
// GPU and the ring while CPU threads copy the neighbouring chunks between the ring and the application's memory. The
// threads share each chunk, so that the first chunk takes the CPU no longer than the others, and no thread is left
// alone with the last one.
//
// The engine is any type with
//   using ticket;                                  // copied and queried from any thread
//   result<ticket> submit(const transfer& part);   // queues the copy of a chunk; any thread
//   status wait(const ticket& queued);             // any number of threads
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <span>
#include <utility>

#include "arch/copy_dispatch.hpp"
#include "arch/mmio.hpp"
#include "base/status.hpp"
#include "copy/transfer.hpp"
#include "copy/worker_pool.hpp"

namespace pl::copy::ring {

constexpr std::size_t kMinChunkBytes = 64u << 10;  // below it, the engine's start-up sets the pace, not its speed
constexpr std::size_t kMinCutBytes = 256u << 10;   // a shorter copy is not cut into smaller chunks than the ring's
constexpr std::size_t kMinCutChunks = 4;           // minimum that a longer one is cut into, so that the two sides overlap
constexpr std::size_t kMinShares = 16;             // of a chunk, so that no thread waits long for the last one
constexpr std::size_t kMinParts = 8;               // of a copy, for several threads to share
constexpr std::size_t kMinShareBytes = 16u << 10;  // about 1.5 us
// Chunks queued before any thread is called; the others are queued while these are in flight.
constexpr std::size_t kAhead = 2;
constexpr unsigned kMinChunks = 2;  // one for the engine, one for the CPU
constexpr std::size_t kNever = ~std::size_t{0};
constexpr unsigned kPollsPerYield = 64;

// Chunk i is in slot i % slots.
template <class Engine>
struct slot {
  std::atomic<std::size_t> submitted{kNever};  // the chunk whose DMA was queued last; release: after `end`
  std::atomic<std::size_t> shares_left{0};     // of the chunk that the CPU works on, or will work on
  typename Engine::ticket end;
};

// One copy. A part is a thread's share of a chunk. Parts are claimed in ascending order, and a part waits at most for
// lower ones. So the parts that a thread waits for have been claimed and will end, even if a single thread runs all
// parts.
template <class Engine>
class job {
 public:
  job(Engine& engine, std::byte* ring, std::span<slot<Engine>> slots, std::size_t chunk_bytes, transfer whole)
      : engine_(engine),
        ring_(ring),
        slots_(slots),
        chunk_bytes_(chunk_bytes),
        share_bytes_(std::clamp(std::bit_floor(whole.row_bytes / kMinParts), std::min(kMinShareBytes, chunk_bytes),
                                std::max(kMinShareBytes, chunk_bytes / kMinShares))),
        whole_(whole) {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      slots_[i].submitted.store(kNever, std::memory_order_relaxed);
      slots_[i].shares_left.store(shares_of(i), std::memory_order_relaxed);
    }
  }

  std::size_t parts() const { return pieces(whole_.row_bytes, share_bytes_); }

  // The first chunks are already queued in the driver when the threads arrive.
  void submit_ahead() {
    for (std::size_t i = 0; i < std::min({kAhead, chunks(), slots_.size()}) && !has_failed(); ++i) submit(i);
  }

  void take_out(std::size_t part) {
    // The rest of the ring: a call of about 4 us for each chunk, by all threads and while the first chunks are in
    // flight.
    if (const std::size_t ahead = part + kAhead; ahead < std::min(chunks(), slots_.size())) submit(ahead);
    const std::size_t i = chunk_of(part);
    if (!await_slot(i, i)) return;
    void* const destination = host_pointer(whole_.dst + part * share_bytes_);
    // Through the caches: the engine has put the chunk there, stores that bypass them are no faster (H100: 21.5 GB/s, 23.8
    // with them at 16 MiB by 4 threads), and then it takes the application longer to read the bytes (H200: 4 MiB are copied
    // and summed in 521 us, 766 with them).
    std::memcpy(destination, in_ring(part), bytes_of(part));
    if (is_last_share(i) && i + slots_.size() < chunks()) submit(i + slots_.size());
  }

  void put_in(std::size_t part) {
    const std::size_t i = chunk_of(part);
    if (!await_slot(i, i < slots_.size() ? kNever : i - slots_.size())) return;
    // Past the caches: the chunk is not read from memory first, and the engine does not have to fetch it from a CPU's
    // cache (16 MiB by 4 threads: 35 GB/s instead of 20).
    arch::copy_to(arch::mapping_type::wc, in_ring(part), host_pointer(whole_.src + part * share_bytes_), bytes_of(part));
    if (is_last_share(i)) submit(i);
  }

  // Afterwards nothing is in flight: the ring may be reused, and the caller may free its memory.
  status finish() {
    for (auto& s : slots_)
      if (s.submitted.load(std::memory_order_acquire) != kNever) keep_first(engine_.wait(s.end));
    return std::move(failed_);
  }

 private:
  static std::size_t pieces(std::size_t bytes, std::size_t each) { return (bytes + each - 1) / each; }
  std::size_t chunks() const { return pieces(whole_.row_bytes, chunk_bytes_); }
  std::size_t offset(std::size_t i) const { return i * chunk_bytes_; }
  std::size_t bytes(std::size_t i) const { return std::min(chunk_bytes_, whole_.row_bytes - offset(i)); }
  std::byte* in_ring_at(std::size_t i) const { return ring_ + i % slots_.size() * chunk_bytes_; }

  std::size_t chunk_of(std::size_t part) const { return part * share_bytes_ / chunk_bytes_; }
  std::size_t bytes_of(std::size_t part) const { return std::min(share_bytes_, whole_.row_bytes - part * share_bytes_); }
  std::byte* in_ring(std::size_t part) const {
    return in_ring_at(chunk_of(part)) + (part * share_bytes_ - offset(chunk_of(part)));
  }
  std::size_t shares_of(std::size_t i) const { return i < chunks() ? pieces(bytes(i), share_bytes_) : 0; }

  // Release and acquire: the thread that queues the slot's next DMA does so after all shares of this chunk.
  bool is_last_share(std::size_t i) {
    auto& s = slots_[i % slots_.size()];
    if (s.shares_left.fetch_sub(1, std::memory_order_acq_rel) != 1) return false;
    s.shares_left.store(shares_of(i + slots_.size()), std::memory_order_relaxed);  // published by submit()
    return true;
  }

  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }

  void keep_first(status outcome) {
    if (outcome) return;
    const std::lock_guard lock(mutex_);
    if (failed_) failed_ = std::move(outcome);
    has_failed_.store(true, std::memory_order_release);
  }

  void submit(std::size_t i) {
    transfer part = whole_;
    part.row_bytes = bytes(i);
    part.src = whole_.way == direction::to_host ? whole_.src + offset(i) : address_of(in_ring_at(i));
    part.dst = whole_.way == direction::to_host ? address_of(in_ring_at(i)) : whole_.dst + offset(i);
    auto queued = engine_.submit(part);
    if (!queued) return keep_first(queued.error());
    auto& s = slots_[i % slots_.size()];
    s.end = *queued;
    s.submitted.store(i, std::memory_order_release);
  }

  // Waits until the slot of chunk i holds chunk `expected` and its DMA has ended. Returns false once anything has
  // failed.
  bool await_slot(std::size_t i, std::size_t expected) {
    auto& s = slots_[i % slots_.size()];
    for (unsigned polls = 1; s.submitted.load(std::memory_order_acquire) != expected; ++polls) {
      if (has_failed()) return false;
      arch::relax();
      if (polls % kPollsPerYield == 0) sched_yield();  // the thread that has a lower part may be waiting for this CPU
    }
    if (has_failed()) return false;
    if (expected != kNever) keep_first(engine_.wait(s.end));
    return !has_failed();
  }

  Engine& engine_;
  std::byte* const ring_;
  const std::span<slot<Engine>> slots_;
  const std::size_t chunk_bytes_;
  const std::size_t share_bytes_;  // divides chunk_bytes_
  const transfer whole_;
  std::atomic<bool> has_failed_{false};
  std::mutex mutex_;  // guards failed_
  status failed_;
};

// Runs the copy with `width` threads of the pool, including the caller; `chunk_bytes`, a power of two, is the ring's.
template <class Engine>
status run(Engine& engine, worker_pool& pool, std::byte* ring, std::span<slot<Engine>> slots, std::size_t chunk_bytes,
           const transfer& whole, unsigned width) {
  const std::size_t cut = std::max(std::bit_floor(whole.row_bytes / kMinCutChunks), kMinCutBytes);
  job<Engine> current(engine, ring, slots, std::min(chunk_bytes, cut), whole);
  const bool is_read = whole.way == direction::to_host;
  if (is_read) current.submit_ahead();
  pool.run(std::max(width, 1u), current.parts(),
           [&](std::size_t part) { is_read ? current.take_out(part) : current.put_in(part); });
  return current.finish();
}

}  // namespace pl::copy::ring
