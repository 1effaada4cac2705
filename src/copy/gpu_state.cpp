// SPDX-License-Identifier: Apache-2.0
#include "copy/gpu_state.hpp"

#include "base/log.hpp"
#include "copy/refusal_list.hpp"

namespace pl::copy {
namespace {

std::uint64_t refused_until_ns(int code) {
  return is_permanent_refusal(code) ? UINT64_MAX : monotonic_ns() + std::uint64_t{gpu_state::kEngineRetryMs} * 1'000'000;
}

}  // namespace

status staging_area::open(const gpu_context& context) {
  auto made = pinned_buffer::make(context, kPieces * kPieceBytes);
  if (!made) return made.error();
  memory_ = *std::move(made);
  host_ = inspect_host(*context.cuda, memory_.data(), memory_.size_bytes(), &context);
  return {};
}

staging_area::chunk_lease staging_area::borrow() noexcept {
  chunk_lease out;
  for (unsigned i = 0; i < kPieces; ++i)
    if (!is_leased_[i].load(std::memory_order_relaxed) && !is_leased_[i].exchange(true, std::memory_order_acquire)) {
      out.area_ = this;
      out.index_ = i;
      break;
    }
  return out;
}

bool staging_area::release() noexcept {
  for (unsigned i = 0; i < kPieces; ++i)
    if (!is_retired_[i] && is_leased_[i].exchange(true, std::memory_order_acquire)) return false;
    else is_retired_[i] = true;
  memory_ = {};
  return true;
}

bool gpu_state::release_memory() {
  const std::lock_guard lock(mutex_);
  bool is_released = ring_ == nullptr || ring_->release();
  is_released &= channel_ring_ == nullptr || channel_ring_->release();
  is_released &= staging_ == nullptr || staging_->release();
  if (channels_ != nullptr) channels_->release();
  return is_released;
}

result<copy_engine*> gpu_state::dma() {
  if (auto* const known = dma_open_.load(std::memory_order_acquire)) return known;
  const std::lock_guard lock(mutex_);
  if (dma_ == nullptr) {
    auto made = copy_engine::open(context);
    if (!made) return made.error();
    dma_ = *std::move(made);
    dma_open_.store(dma_.get(), std::memory_order_release);
  }
  return dma_.get();
}

result<bounce_ring*> gpu_state::ring() {
  if (auto* const known = ring_open_.load(std::memory_order_acquire)) return known;
  auto engine = dma();
  if (!engine) return engine.error();
  const std::lock_guard lock(mutex_);
  if (ring_ == nullptr) {
    ring_ = std::make_unique<bounce_ring>(**engine, pool, bounce_ring::options{});
    ring_open_.store(ring_.get(), std::memory_order_release);
  }
  return ring_.get();
}

result<staging_area*> gpu_state::staging() {
  if (auto* const known = staging_open_.load(std::memory_order_acquire)) return known;
  const std::lock_guard lock(mutex_);
  if (staging_ == nullptr) {
    auto made = std::make_unique<staging_area>();
    if (auto opened = made->open(context); !opened) return opened.error();
    staging_ = std::move(made);
    staging_open_.store(staging_.get(), std::memory_order_release);
  }
  return staging_.get();
}

result<dma_engine*> gpu_state::channels() {
  if (auto* const known = open_channels()) return known;
  const std::lock_guard lock(mutex_);
  if (channels_refusal_ && are_channels_refused()) return *channels_refusal_;
  if (channels_ == nullptr) {
    auto made = dma_engine::open(context);
    if (!made) {
      if (!channels_refusal_) PL_LOG(info, "copies go without DMA channels: %s", made.error().message.c_str());
      channels_refusal_ = made.error();
      channels_refused_until_ns_.store(refused_until_ns(made.code()), std::memory_order_release);
      return made.error();
    }
    channels_ = *std::move(made);
    channels_open_.store(channels_.get(), std::memory_order_release);
  }
  return channels_.get();
}

result<channel_ring*> gpu_state::channel_rings() {
  if (auto* const known = channel_ring_open_.load(std::memory_order_acquire)) return known;
  auto* const engine = open_channels();
  if (engine == nullptr) return failure{EAGAIN, "the DMA channel is not open"};
  const std::lock_guard lock(mutex_);
  if (channel_ring_ == nullptr) {
    channel_ring_ = std::make_unique<channel_ring>(*engine, pool, channel_ring::options{});
    channel_ring_open_.store(channel_ring_.get(), std::memory_order_release);
  }
  return channel_ring_.get();
}

result<gpu_checksum*> gpu_state::checksum() {
  const std::lock_guard lock(mutex_);
  if (checksum_refusal_ && is_before(checksum_refused_until_ns_)) return *checksum_refusal_;
  if (checksum_ == nullptr) {
    auto made = gpu_checksum::open(context);
    if (!made) {
      checksum_refused_until_ns_ = refused_until_ns(made.code());
      return *(checksum_refusal_ = made.error());
    }
    checksum_ = *std::move(made);
  }
  return checksum_.get();
}

void gpu_state::refuse_engine_locked(const failure& reason) {
  if (!engine_refusal_) PL_LOG(info, "copies go without the GPU engine: %s", reason.message.c_str());
  engine_refusal_ = reason;
  engine_refused_until_ns_.store(refused_until_ns(reason.code), std::memory_order_release);
}

void gpu_state::refuse_engine(const failure& reason) {
  const std::lock_guard lock(mutex_);
  refuse_engine_locked(reason);
}

result<gpu_engine*> gpu_state::engine(backend& maps, const gpu_engine::options& wanted) {
  if (auto* const known = open_engine()) return known;
  const std::lock_guard lock(mutex_);
  if (engine_refusal_ && is_engine_refused()) return *engine_refusal_;
  if (engine_ == nullptr) {
    auto made = gpu_engine::open(context, maps, wanted);
    if (!made) {
      refuse_engine_locked(made.error());
      return made.error();
    }
    engine_ = *std::move(made);
    engine_open_.store(engine_.get(), std::memory_order_release);
  }
  return engine_.get();
}

}  // namespace pl::copy
