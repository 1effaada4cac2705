// SPDX-License-Identifier: Apache-2.0
// The executors of one CUDA context, each opened when it is first wanted.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/clock.hpp"
#include "copy/bounce.hpp"
#include "copy/channel_ring.hpp"
#include "copy/copy_engine.hpp"
#include "copy/dma_engine.hpp"
#include "copy/gpu_checksum.hpp"
#include "copy/gpu_engine.hpp"
#include "copy/worker_pool.hpp"

namespace pl::copy {

// Pinned memory for data on its way to pageable memory, in a few pieces that copies borrow.
class staging_area {
 public:
  static constexpr std::size_t kPieceBytes = 1u << 20;
  static constexpr unsigned kPieces = 4;

  // A piece of it; empty if all are lent out.
  class chunk_lease {
   public:
    chunk_lease() = default;
    chunk_lease(chunk_lease&& other) noexcept : area_(std::exchange(other.area_, nullptr)), index_(other.index_) {}
    chunk_lease& operator=(chunk_lease&&) = delete;
    ~chunk_lease() {
      if (area_ != nullptr) area_->is_leased_[index_].store(false, std::memory_order_release);
    }
    explicit operator bool() const { return area_ != nullptr; }
    // Never to be lent out again, because a worker that did not answer may still write there.
    void forfeit() noexcept { area_ = nullptr; }
    std::byte* data() const { return area_->memory_.data() + index_ * kPieceBytes; }
    cu::device_ptr device_address() const { return area_->memory_.device_address() + index_ * kPieceBytes; }

   private:
    friend class staging_area;
    staging_area* area_ = nullptr;
    unsigned index_ = 0;
  };

  status open(const gpu_context& context);  // once
  chunk_lease borrow() noexcept;
  // Lends nothing any more, and frees the memory once all pieces are back. False: one is lent out; try again. One thread at
  // a time.
  bool release() noexcept;
  // The driver's information about the whole.
  const host_memory& host() const noexcept { return host_; }

 private:
  pinned_buffer memory_;
  host_memory host_;
  std::atomic<bool> is_leased_[kPieces] = {};
  bool is_retired_[kPieces] = {};  // by release()
};

struct gpu_state {
  gpu_state(const gpu_context& its_context, worker_pool& its_pool) : context(its_context), pool(its_pool) {}

  gpu_context context;
  worker_pool& pool;

  result<copy_engine*> dma();
  result<bounce_ring*> ring();
  result<staging_area*> staging();
  // Opens the DMA channels' engine (about 6 ms). A refusal is remembered, as for the copy kernel.
  result<dma_engine*> channels();
  dma_engine* open_channels() const noexcept { return channels_open_.load(std::memory_order_acquire); }
  // Through open channels only; EAGAIN if there are none.
  result<channel_ring*> channel_rings();
  bool are_channels_refused() const noexcept { return is_before(channels_refused_until_ns_); }
  result<gpu_checksum*> checksum();  // a refusal is remembered, as for the copy kernel
  // Opens it (about 5 ms). A refusal is remembered: permanently if it is due to the installation, for kEngineRetryMs if
  // it may pass.
  result<gpu_engine*> engine(backend& maps, const gpu_engine::options& wanted);
  gpu_engine* open_engine() const noexcept { return engine_open_.load(std::memory_order_acquire); }
  bool is_engine_refused() const noexcept { return is_before(engine_refused_until_ns_); }
  void refuse_engine(const failure& reason);
  static constexpr unsigned kEngineRetryMs = 1000;

  // For a destroyed context: frees the rings and the staging area, up to 36 MiB, and the DMA channels. The executors remain,
  // because other threads may still call them. False: a copy uses some of it; try again. One thread at a time.
  bool release_memory();

  // For starting the GPU engine (planner.cpp): when it was last wanted, and how often before it was opened.
  std::atomic<std::uint64_t> wanted_ticks{0};
  std::atomic<unsigned> wanted_count{0};

 private:
  static bool is_before(const std::atomic<std::uint64_t>& until_ns) noexcept {
    const std::uint64_t end_ns = until_ns.load(std::memory_order_acquire);
    return end_ns != 0 && monotonic_ns() < end_ns;
  }
  void refuse_engine_locked(const failure& reason);
  std::mutex mutex_;
  std::unique_ptr<copy_engine> dma_;
  std::unique_ptr<bounce_ring> ring_;
  std::unique_ptr<staging_area> staging_;
  std::unique_ptr<gpu_checksum> checksum_;
  std::optional<failure> checksum_refusal_;
  std::atomic<std::uint64_t> checksum_refused_until_ns_{0};
  std::unique_ptr<dma_engine> channels_;
  std::unique_ptr<channel_ring> channel_ring_;
  std::optional<failure> channels_refusal_;
  std::atomic<std::uint64_t> channels_refused_until_ns_{0};
  std::atomic<dma_engine*> channels_open_{nullptr};
  std::atomic<channel_ring*> channel_ring_open_{nullptr};
  std::unique_ptr<gpu_engine> engine_;
  std::optional<failure> engine_refusal_;
  std::atomic<std::uint64_t> engine_refused_until_ns_{0};
  std::atomic<copy_engine*> dma_open_{nullptr};
  std::atomic<bounce_ring*> ring_open_{nullptr};
  std::atomic<staging_area*> staging_open_{nullptr};
  std::atomic<gpu_engine*> engine_open_{nullptr};
};

}  // namespace pl::copy
