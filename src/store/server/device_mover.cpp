// SPDX-License-Identifier: Apache-2.0
#include "store/server/device_mover.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/text.hpp"
#include "cuda/driver_table.hpp"
#include "os/device_io.hpp"
#include "rm/simulated_device_io.hpp"

namespace pl::store_server {
namespace {

constexpr std::uint64_t kListMemoryBytes = std::uint64_t{8} << 20;  // 340 000 blocks in flight
constexpr std::size_t kShortBlocks = 64;
constexpr std::uint64_t kShortBytes = std::uint64_t{256} << 10;
constexpr std::uint64_t kMaxBlockBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kRingAgainNs = 20'000;  // one doorbell in 50 000 is missed (docs/results/dma)
// The link carries 64 GiB, the longest value, in two seconds.
constexpr std::uint64_t kMaxTransferNs = 10'000'000'000;

// The resource manager's device files: those of this machine's GPUs, or the simulated one's. Only the latter requires
// libcuda.
result<device_io*> find_device_files() {
  const std::string wanted = env_read("PEERLANE_GPU").text;
  if (wanted != "sim" && access("/dev/nvidiactl", F_OK) == 0) return &default_device_io();
  if (wanted == "real") return failure{ENODEV, "the server sees no GPU: there is no /dev/nvidiactl"};
  const auto cuda = cu::driver();
  device_io* const simulated = cuda ? rm::simulated_device_io(**cuda) : nullptr;
  if (simulated == nullptr) return failure{ENODEV, "the server sees no GPU: there is no /dev/nvidiactl"};
  return simulated;
}

bool is_short(std::span<const dma::block> blocks) {
  if (blocks.size() > kShortBlocks) return false;
  std::uint64_t bytes = 0;
  for (const dma::block& one : blocks) bytes += one.size_bytes;
  return bytes <= kShortBytes;
}

}  // namespace

// ---- A GPU ---------------------------------------------------------------------------------------------------------------

device_gpu::device_gpu(copy::channel_source source, std::span<std::byte> arena)
    : source_(std::move(source)), arena_(arena), windows_((arena.size() + kWindowBytes - 1) / kWindowBytes) {}

result<std::shared_ptr<device_gpu>> device_gpu::open(std::shared_ptr<rm_space> space, const rm::gpu& gpu,
                                                     std::span<std::byte> arena) {
  auto source = copy::channel_source::open(std::move(space), gpu);
  if (!source) return source.error();
  std::shared_ptr<device_gpu> made(new device_gpu(*std::move(source), arena));
  for (const way direction : {way::to_device, way::to_store})
    if (auto opened = made->channel_for(direction, true); !opened) return opened.error();
  return made;
}

result<std::shared_ptr<dma::channel>> device_gpu::channel_for(way direction, bool is_short_one) {
  const bool to_host = direction == way::to_store;
  const std::lock_guard hold(mutex_);
  auto& slot = channels_[(to_host ? 0u : 1u) + (is_short_one ? 0u : 2u)];
  if (slot != nullptr) return slot;
  dma::channel_options options;
  options.engine = source_.engine_of(to_host, !is_short_one);
  if (!is_short_one) options.memory_bytes = kListMemoryBytes;
  auto opened = dma::channel::open(source_.addresses, options);
  if (!opened) return opened.error();
  return slot = *std::move(opened);
}

bool device_gpu::is_bound(std::uint64_t offset, std::uint64_t bytes) const noexcept {
  for (std::uint64_t i = offset / kWindowBytes; bytes > 0 && i <= (offset + bytes - 1) / kWindowBytes; ++i)
    if (windows_[i].load(std::memory_order_acquire) == 0) return false;
  return true;
}

status device_gpu::bind(std::uint64_t offset, std::uint64_t bytes) {
  const std::lock_guard hold(mutex_);
  for (std::uint64_t i = offset / kWindowBytes; bytes > 0 && i <= (offset + bytes - 1) / kWindowBytes; ++i) {
    if (windows_[i].load(std::memory_order_relaxed) != 0) continue;
    const std::uint64_t begin = i * kWindowBytes, length = std::min(kWindowBytes, arena_.size() - begin);
    auto region = addresses().bind_host(arena_.data() + begin, length);
    if (!region) return failure{region.code(), "the store's memory cannot be pinned for the GPU: " + region.error().message};
    bound_.push_back(*std::move(region));
    windows_[i].store(bound_.back().address(), std::memory_order_release);
  }
  return {};
}

void device_gpu::add_blocks(way direction, std::uint64_t offset, std::uint64_t device_address, std::uint64_t bytes,
                            std::vector<dma::block>& out) const {
  while (bytes > 0) {
    const std::uint64_t inside = offset % kWindowBytes;
    const std::uint64_t part = std::min({bytes, kWindowBytes - inside, kMaxBlockBytes});
    const std::uint64_t host = windows_[offset / kWindowBytes].load(std::memory_order_relaxed) + inside;
    const auto size = static_cast<std::uint32_t>(part);
    out.push_back(direction == way::to_store ? dma::block{host, device_address, size}
                                             : dma::block{device_address, host, size});
    offset += part;
    device_address += part;
    bytes -= part;
  }
}

result<device_gpu::ticket> device_gpu::submit(way direction, std::span<const dma::block> blocks, bool is_one_of_several) {
  for (bool is_again = false;; is_again = true) {
    auto channel = channel_for(direction, !is_one_of_several && is_short(blocks));
    if (!channel) return channel.error();
    // As in the copy planner: a single copy waits for its word, a list is flushed (docs/results/dma).
    auto number = blocks.size() == 1 ? (*channel)->copy(blocks[0].destination, blocks[0].source, blocks[0].size_bytes,
                                                        dma::ordering::none_settled)
                                     : (*channel)->copy_blocks(blocks, dma::ordering::none_flushed);
    if (number) return ticket{*std::move(channel), *number};
    drop(*channel);  // a part may be queued
    if (is_again) return number.error();
  }
}

void device_gpu::drop(const std::shared_ptr<dma::channel>& broken) noexcept {
  broken->stop();
  const std::lock_guard hold(mutex_);
  for (auto& slot : channels_)
    if (slot == broken) slot.reset();
}

// ---- Transfers of one thread ---------------------------------------------------------------------------------------------

void device_queue::be_polled() {
  if (!std::exchange(is_polled_, true)) poller_->add(this);
}

void device_queue::add(job one) {
  be_polled();
  gathered_.push_back(std::move(one));
}

void device_queue::watch(std::function<bool()> check) {
  be_polled();
  watched_.push_back(std::move(check));
}

void device_queue::flush() {
  while (!gathered_.empty()) {
    // Takes the jobs that use the same channels as the first one.
    const auto gpu = gathered_.front().gpu;
    const auto direction = gathered_.front().direction;
    std::vector<job> list, rest;
    for (job& one : gathered_) (one.gpu == gpu && one.direction == direction ? list : rest).push_back(std::move(one));
    gathered_ = std::move(rest);
    submit(list);
  }
}

void device_queue::submit(std::vector<job>& list) {
  std::vector<dma::block> joined;
  std::span<const dma::block> blocks = list.front().blocks;
  if (list.size() > 1) {
    for (const job& one : list) joined.insert(joined.end(), one.blocks.begin(), one.blocks.end());
    blocks = joined;
  }
  auto ticket = list.front().gpu->submit(list.front().direction, blocks, list.front().is_one_of_several);
  if (!ticket) {
    for (job& one : list) one.ended(ticket.error());
    return;
  }
  const std::uint64_t began_ns = monotonic_ns();
  submitted now{list.front().gpu, *std::move(ticket), began_ns, began_ns + kRingAgainNs, {}};
  for (job& one : list) now.ended.push_back(std::move(one.ended));
  in_flight_.push_back(std::move(now));
}

// Returns nothing while the transfer is in progress.
std::optional<status> device_queue::outcome_of(submitted& one) {
  if (one.ticket.channel->is_done(one.ticket.number)) return status{};
  if (auto fault = one.ticket.channel->fault()) return status(*fault);
  const std::uint64_t now = monotonic_ns();
  if (now >= one.ring_ns) {
    one.ticket.channel->ring();
    one.ring_ns = now + (now - one.began_ns);
  }
  if (now - one.began_ns < kMaxTransferNs) return std::nullopt;
  return status(failure{ETIMEDOUT, "the GPU's copy engine did not answer in time"});
}

void device_queue::stop() noexcept {
  for (const auto& one : in_flight_) one.gpu->drop(one.ticket.channel);
}

std::size_t device_queue::poll() {
  flush();
  std::size_t did = 0;
  for (std::size_t i = 0; i < in_flight_.size();) {
    auto outcome = outcome_of(in_flight_[i]);
    if (!outcome) {
      ++i;
      continue;
    }
    submitted one = std::move(in_flight_[i]);
    in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(i));
    if (!*outcome) one.gpu->drop(one.ticket.channel);
    for (auto& ended : one.ended) ended(*outcome);
    ++did;
  }
  for (std::size_t i = 0; i < watched_.size();) {
    auto check = std::move(watched_[i]);  // the callback may add watches
    const bool is_over = check();
    if (!is_over) {
      watched_[i++] = std::move(check);
      continue;
    }
    watched_.erase(watched_.begin() + static_cast<std::ptrdiff_t>(i));
    ++did;
  }
  return did;
}

// ---- All GPUs ------------------------------------------------------------------------------------------------------------

status device_mover::probe() {
  auto files = find_device_files();
  return files ? status{} : status(files.error());
}

result<std::shared_ptr<device_memory>> device_mover::import(const dma::shared_region& shared) {
  std::shared_ptr<device_gpu> gpu;
  {
    const std::lock_guard hold(mutex_);
    if (space_ == nullptr) {
      auto files = find_device_files();
      if (!files) return files.error();
      auto opened = rm_space::get(**files);
      if (!opened) return opened.error();
      space_ = *std::move(opened);
    }
    auto found = space_->client().find_gpu(shared.gpu);
    if (!found) return found.error();
    auto& slot = gpus_[{shared.gpu.domain, shared.gpu.bus, shared.gpu.device}];
    if (slot == nullptr) {
      auto opened = device_gpu::open(space_, **found, arena_);
      if (!opened)
        return failure{opened.code(),
                       format("the store has no DMA channel to the GPU at %04x:%02x:%02x: %s", shared.gpu.domain,
                              shared.gpu.bus, shared.gpu.device, opened.error().message.c_str())};
      slot = *std::move(opened);
    }
    gpu = slot;
  }
  auto bound = dma::import_region(gpu->addresses(), shared);
  if (!bound) return bound.error();
  return std::make_shared<device_memory>(device_memory{std::move(gpu), *std::move(bound)});
}

}  // namespace pl::store_server
