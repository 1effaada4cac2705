// SPDX-License-Identifier: Apache-2.0
#include "messaging/gpu_windows.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "arch/copy_dispatch.hpp"
#include "base/text.hpp"
#include "map/device_range.hpp"

namespace pl::messaging {
namespace {

// Puts of host memory below this size are stores of the CPU, which is as fast as its copy to the engine's staging memory.
// From it on several threads copy: 512 KiB takes them 24 us, stores 29 (H200).
constexpr std::uint64_t kMinRingBytes = 512u << 10;
constexpr std::size_t kMaxStoredBytes = kMinRingBytes - 1;
// Loads (a get, or a put from GPU memory) wait for the bus once for each KiB.
constexpr std::size_t kMaxLoadedBytes = 1u << 10;
// Bytes between two checks whether the window is still live.
constexpr std::uint64_t kSliceBytes = 16u << 20;
constexpr std::uint64_t kPartBytes = 64u << 10;
constexpr std::size_t kParts = 4;
// From this size on it pays to query whether the memory is pinned.
constexpr std::uint64_t kMinPinnedBytes = 64u << 10;
constexpr std::uint64_t kTimeoutNs = 10'000'000'000;

failure channel_failure(const failure& reason) {
  return {reason.code, format("the DMA channel for a window of GPU memory: %s", reason.message.c_str())};
}

}  // namespace

// ---- The owner

result<window_place> gpu_windows::share(std::uint32_t id, const memory& range) {
  auto space = context_.gpus.space();
  if (!space) return space.error();
  auto made = copy::fd_memory::make(**space, *context_.cuda, {range.address, range.bytes});
  if (!made) return made.error();
  const auto place = made->place();
  shared_.insert_or_assign(id, *std::move(made));
  return window_place{window_place::kind::device, place.fd, place.inode, place.address, place.bytes};
}

// ---- A peer

result<gpu_windows::imported> gpu_windows::open(const window_table::name& owner, const window_place& place) {
  auto pieces = copy::fetch_fd_memory(owner.pid, {place.fd, place.inode, place.address, place.bytes});
  if (!pieces) return pieces.error();
  std::vector<copy::shared_piece> extents;
  for (const copy::taken_piece& one : *pieces) extents.push_back({one.begin, one.region.size_bytes});
  std::vector<dma::shared_region> regions;
  for (copy::taken_piece& one : *pieces) regions.push_back(std::move(one.region));
  auto opened = copy::dma_memory::import(context_.gpus, extents, regions);
  if (opened && !(*opened)->contains(place.address, place.bytes))
    return failure{EPROTO, "the owner's list does not hold its window"};
  return opened;
}

gpu_windows::route& gpu_windows::route_of(const std::shared_ptr<copy::gpu_queues>& queues) {
  route& way = routes_[queues.get()];
  if (way.queues != nullptr) return way;
  way.queues = queues;
  if (context_.cuda != nullptr)
    way.local = std::make_unique<copy::channel_memory>(*context_.cuda, queues->source().space, queues->source().addresses);
  return way;
}

bool gpu_windows::is_of_gpu(const copy::gpu_queues& queues, const memory& local) {
  auto gpu = queues.source().space->gpu_of(*context_.cuda, local.device.device_ordinal);
  return gpu && (*gpu)->pci == queues.pci();
}

std::optional<status> gpu_windows::move_by_cpu(copy::dma_memory& window, std::uint64_t pointer, const memory& local,
                                               bool is_put) {
  if (local.bytes > (is_put && !local.is_device ? kMaxStoredBytes : kMaxLoadedBytes)) return std::nullopt;
  std::byte* const mapped = window.find_mapping(pointer, local.bytes);
  if (mapped == nullptr) return std::nullopt;
  std::array<std::byte, kMaxLoadedBytes> relay;
  void* const own_bytes = local.is_device ? relay.data() : copy::host_pointer(local.address);
  if (!is_put) {
    arch::copy_from(arch::mapping_type::wc, own_bytes, mapped, local.bytes);
    return local.is_device ? context_.buffers.write(local, 0, own_bytes, local.bytes, touch::cpu_only) : status{};
  }
  if (local.is_device)
    if (auto read = context_.buffers.read(local, 0, own_bytes, local.bytes, touch::cpu_only); !read) return read;
  arch::copy_to(arch::mapping_type::wc, mapped, own_bytes, local.bytes);
  return status{};
}

std::optional<status> gpu_windows::move(copy::dma_memory& window, std::uint64_t pointer, const memory& local, bool is_put,
                                        const std::function<bool()>& is_live) {
  if (local.bytes == 0) return status{};
  if (auto done = move_by_cpu(window, pointer, local, is_put)) return done;
  memory known = local;
  if (known.is_device && known.device.device_ordinal < 0) {
    auto asked = cu::inspect_pointer(*context_.cuda, known.address);
    if (!asked) return status(asked.error());
    known.device = *asked;
  }
  // The engine of the local memory's GPU, or else the window's.
  auto engines = window.gpu();
  if (known.is_device && !is_of_gpu(*engines, known)) {
    auto own = context_.gpus.find(*context_.cuda, known.device.device_ordinal);
    if (!own) return std::nullopt;
    engines = *std::move(own);
  }
  route& way = route_of(engines);
  for (std::uint64_t done = 0; done < known.bytes;) {
    const auto extent = window.find(engines, pointer + done);
    if (!extent && done == 0 && extent.code() == ENOTSUP) return std::nullopt;
    if (!extent) return status(extent.error());
    const std::uint64_t inside = pointer + done - extent->begin;
    const span remote{extent->address + inside, std::min({known.bytes - done, extent->size_bytes - inside, kSliceBytes}),
                      engines != window.gpu()};
    const auto moved = move_some(way, remote, known, done, is_put);
    if (!moved) return status(moved.error());
    done += *moved;
    if (done < known.bytes && !is_live()) return status(failure{ECANCELED, "the target has ended its window meanwhile"});
  }
  return status{};
}

result<std::uint64_t> gpu_windows::move_some(route& way, const span& remote, const memory& local, std::uint64_t done,
                                             bool is_put) {
  const std::uint64_t pointer = local.address + done;
  if (local.is_device) {
    // Another memory object may follow the first one, and its properties are unknown.
    auto info = local.device;
    if (info.object.size_bytes != 0 && !info.object.contains({pointer, 1})) {
      auto asked = cu::inspect_pointer(*context_.cuda, pointer);
      if (!asked) return asked.error();
      info = *asked;
    }
    auto piece = way.local->find_device(info, pointer, remote.bytes);
    if (!piece) return piece.error();
    return copy_bound(way, remote, *piece, is_put, true);
  }
  if (way.local != nullptr && remote.bytes >= kMinPinnedBytes) {
    const auto info = copy::inspect_host(*context_.cuda, copy::host_pointer(pointer), remote.bytes);
    if (info.is_pinned && !info.is_in_pieces)
      if (auto piece = way.local->find_host(info, pointer, remote.bytes))
        return copy_bound(way, remote, *piece, is_put, false);
  }
  auto* const own_bytes = static_cast<std::byte*>(copy::host_pointer(pointer));
  const bool is_long = remote.bytes >= kMinRingBytes && !remote.is_on_peer;
  auto moved = is_long  ? move_by_ring(way, remote, own_bytes, is_put)
               : is_put ? send_staged(way, remote, own_bytes)
                        : receive_staged(way, remote, own_bytes);
  if (!moved) return moved.error();
  return remote.bytes;
}

result<std::uint64_t> gpu_windows::copy_bound(route& way, const span& remote, const copy::channel_memory::piece& local,
                                              bool is_put, bool is_on_device) {
  using path = copy::gpu_queues::path;
  const std::uint64_t bytes = std::min(remote.bytes, local.size_bytes);
  const path direction = remote.is_on_peer        ? is_put ? path::to_peer : path::from_peer
                         : is_put || is_on_device ? path::to_device
                                                  : path::to_host;
  auto begun =
      way.queues->copy(direction, is_put ? remote.address : local.address, is_put ? local.address : remote.address, bytes);
  if (!begun) return begun.error();
  if (auto done = wait(way, *begun, bytes); !done) return done.error();
  return bytes;
}

status gpu_windows::wait(route& way, const copy::gpu_queues::ticket& begun, std::uint64_t bytes) {
  constexpr std::uint64_t kSlowestBytesPerUs = 100;
  auto done = begun.channel->wait(begun.number, kTimeoutNs + bytes / kSlowestBytesPerUs * 1000);
  if (done) return done;
  way.queues->drop(begun.channel);
  return channel_failure(done.error());
}

status gpu_windows::move_by_ring(route& way, const span& remote, std::byte* own_bytes, bool is_put) {
  if (way.ring == nullptr) {
    auto made = copy::queue_ring::open(way.queues, context_.copy_threads());
    if (!made) return made.error();
    way.ring = *std::move(made);
  }
  auto done = is_put ? way.ring->to_device(remote.address, own_bytes, remote.bytes)
                     : way.ring->to_host(own_bytes, remote.address, remote.bytes);
  if (done) return done;
  return channel_failure(done.error());
}

// The CPU fills one part while the engine copies others.
status gpu_windows::send_staged(route& way, const span& remote, const std::byte* source) {
  if (way.outgoing == nullptr) {
    auto made = std::make_unique<staging>();
    auto pages = unforked_pages::make(kParts * kPartBytes);
    if (!pages) return pages.error();
    made->pages = *std::move(pages);
    auto bound = way.queues->addresses().bind_host(made->pages.data(), kParts * kPartBytes);
    if (!bound) return bound.error();
    made->bound = *std::move(bound);
    way.outgoing = std::move(made);
  }
  std::array<copy::gpu_queues::ticket, kParts> in_flight;
  const auto end_part = [&](copy::gpu_queues::ticket& one) {
    return one.channel == nullptr ? status{} : wait(way, std::exchange(one, {}), kPartBytes);
  };
  status outcome;
  for (std::uint64_t done = 0, part = 0; outcome && done < remote.bytes; ++part) {
    const std::uint64_t place = part % kParts, bytes = std::min(kPartBytes, remote.bytes - done);
    if (outcome = end_part(in_flight[place]); !outcome) break;
    std::memcpy(way.outgoing->pages.data() + place * kPartBytes, source + done, bytes);
    auto begun = way.queues->copy(copy::gpu_queues::path::to_device, remote.address + done,
                                  way.outgoing->bound.address() + place * kPartBytes, bytes);
    if (begun) in_flight[place] = *std::move(begun);
    else outcome = begun.error();
    done += bytes;
  }
  for (auto& one : in_flight)
    if (auto ended = end_part(one); !ended && outcome) outcome = ended;
  return outcome;
}

status gpu_windows::receive_staged(route& way, const span& remote, std::byte* destination) {
  if (way.arrivals == nullptr) {
    auto made = dma::arrival_buffer::open(way.queues->source().addresses);
    if (!made) return made.error();
    way.arrivals = *std::move(made);
  }
  auto channel = way.queues->channel_for(copy::gpu_queues::path::to_host, true);
  if (!channel) return channel.error();
  auto done = way.arrivals->read(**channel, remote.address, destination, remote.bytes, kTimeoutNs);
  if (!done) way.queues->forget(*channel);
  return done;
}

}  // namespace pl::messaging
