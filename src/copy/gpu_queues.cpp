// SPDX-License-Identifier: Apache-2.0
#include "copy/gpu_queues.hpp"

#include <cerrno>
#include <utility>

#include "base/text.hpp"
#include "cuda/driver_table.hpp"
#include "os/device_io.hpp"
#include "rm/simulated_device_io.hpp"

namespace pl::copy {
namespace {

constexpr std::uint64_t kListMemoryBytes = std::uint64_t{8} << 20;  // 340 000 blocks in flight
constexpr std::size_t kShortBlocks = 64;
constexpr std::uint64_t kShortBytes = std::uint64_t{256} << 10;

bool is_short(std::span<const dma::block> blocks) {
  if (blocks.size() > kShortBlocks) return false;
  std::uint64_t size_bytes = 0;
  for (const dma::block& one : blocks) size_bytes += one.size_bytes;
  return size_bytes <= kShortBytes;
}

}  // namespace

result<std::shared_ptr<gpu_queues>> gpu_queues::open(std::shared_ptr<rm_space> space, const rm::gpu& gpu) {
  auto source = channel_source::open(std::move(space), gpu);
  if (!source) return source.error();
  std::shared_ptr<gpu_queues> made(new gpu_queues(*std::move(source), gpu.pci));
  if (auto tried = made->channel_for(path::to_device, true); !tried) return tried.error();
  return made;
}

result<std::shared_ptr<dma::channel>> gpu_queues::channel_for(path way, bool is_short_one) {
  const bool is_peer = way == path::from_peer || way == path::to_peer;
  const std::size_t index = is_peer ? 4u : (way == path::to_host ? 0u : 1u) + (is_short_one ? 0u : 2u);
  const std::lock_guard hold(mutex_);
  auto& slot = channels_[index];
  if (slot != nullptr) return slot;
  dma::channel_options options;
  options.engine = source_.engine_of(way == path::to_host, !is_short_one);
  // The memory was bound before, so the engine is known.
  if (is_peer) options.engine = source_.addresses->peer_engine().value_or(options.engine);
  if (!is_short_one || is_peer) options.memory_bytes = kListMemoryBytes;
  auto opened = dma::channel::open(source_.addresses, options);
  if (!opened && opened.code() == ENOMEM && !is_peer)  // no GPU memory for another one: any of them moves everything
    for (std::size_t one = 0; one < 4; ++one)
      if (channels_[one] != nullptr) return channels_[one];
  if (!opened) return opened.error();
  return slot = *std::move(opened);
}

template <class Give>
result<gpu_queues::ticket> gpu_queues::submit_one(path way, bool is_short_one, Give give) {
  for (bool is_again = false;; is_again = true) {
    auto channel = channel_for(way, is_short_one);
    if (!channel) return channel.error();
    auto number = give(**channel);
    if (number) return ticket{*std::move(channel), *number};
    drop(*channel);  // a part may be queued
    if (is_again) return number.error();
  }
}

result<gpu_queues::ticket> gpu_queues::submit(path way, std::span<const dma::block> blocks) {
  // Without the flush, data arrives after its completion word, for the host too (docs/results/dma).
  return submit_one(way, is_short(blocks),
                    [&](dma::channel& channel) { return channel.copy_blocks(blocks, dma::ordering::none_flushed); });
}

result<gpu_queues::ticket> gpu_queues::submit_settled(path way, std::span<const dma::block> blocks) {
  return submit_one(way, is_short(blocks),
                    [&](dma::channel& channel) { return channel.copy_blocks(blocks, dma::ordering::none_settled); });
}

result<gpu_queues::ticket> gpu_queues::copy(path way, std::uint64_t destination, std::uint64_t source,
                                            std::uint64_t size_bytes) {
  // A settled word arrives before data that another GPU gets (docs/design/0009).
  const auto order = way == path::to_peer ? dma::ordering::none_flushed : dma::ordering::none_settled;
  return submit_one(way, size_bytes <= kShortBytes,
                    [&](dma::channel& channel) { return channel.copy(destination, source, size_bytes, order); });
}

void gpu_queues::drop(const std::shared_ptr<dma::channel>& broken) noexcept {
  broken->stop();
  forget(broken);
}

void gpu_queues::forget(const std::shared_ptr<dma::channel>& broken) noexcept {
  const std::lock_guard hold(mutex_);
  for (auto& slot : channels_)
    if (slot == broken) slot.reset();
}

result<std::shared_ptr<rm_space>> gpu_table::space() {
  const std::lock_guard hold(mutex_);
  if (space_ != nullptr) return space_;
  const auto cuda = cu::driver();
  device_io* const simulated = cuda ? rm::simulated_device_io(**cuda) : nullptr;
  auto opened = rm_space::get(simulated != nullptr ? *simulated : default_device_io());
  if (!opened) return opened.error();
  return space_ = *std::move(opened);
}

result<std::shared_ptr<gpu_queues>> gpu_table::find_locked(const rm::gpu& gpu) {
  auto& slot = gpus_[{gpu.pci.domain, gpu.pci.bus, gpu.pci.device}];
  if (slot != nullptr) return slot;
  auto opened = gpu_queues::open(space_, gpu);
  if (!opened)
    return failure{opened.code(), format("the GPU at %04x:%02x:%02x has no DMA channel: %s", gpu.pci.domain, gpu.pci.bus,
                                         gpu.pci.device, opened.error().message.c_str())};
  return slot = *std::move(opened);
}

result<std::shared_ptr<gpu_queues>> gpu_table::find(const rm::pci_address& pci) {
  auto opened = space();
  if (!opened) return opened.error();
  auto gpu = (*opened)->client().find_gpu(pci);
  if (!gpu) return gpu.error();
  const std::lock_guard hold(mutex_);
  return find_locked(**gpu);
}

result<std::shared_ptr<gpu_queues>> gpu_table::find(const cu::driver_table& cuda, int device_ordinal) {
  auto opened = space();
  if (!opened) return opened.error();
  auto gpu = (*opened)->gpu_of(cuda, device_ordinal);
  if (!gpu) return gpu.error();
  const std::lock_guard hold(mutex_);
  return find_locked(**gpu);
}

}  // namespace pl::copy
