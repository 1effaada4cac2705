// SPDX-License-Identifier: Apache-2.0
#include "messaging/gpu_windows.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "arch/copy_dispatch.hpp"
#include "base/text.hpp"
#include "map/device_range.hpp"

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438  // headers before Linux 5.6; one number for all machines
#endif

namespace pl::messaging {
namespace {

// The file that lists what a window lies in.
struct listed_piece {
  std::int32_t fd = -1;
  std::uint32_t domain = 0, bus = 0, device = 0;
  std::uint64_t begin = 0, size_bytes = 0;  // of the owner's addresses
  std::uint64_t offset = 0;                 // in the driver's object
};
struct listed_window {
  std::uint64_t pieces = 0;
  listed_piece first[1];
};
constexpr std::uint64_t kMaxPieces = 4096;
constexpr std::size_t list_bytes(std::uint64_t pieces) {
  return offsetof(listed_window, first) + static_cast<std::size_t>(pieces) * sizeof(listed_piece);
}

// Puts of host memory up to here are stores of the CPU, at the rate at which it could copy to memory of the engine's alone.
// What it loads, to get or out of GPU memory of its own, waits for the bus once up to a KiB, and for each KiB beyond.
constexpr std::size_t kMaxStoredBytes = 1u << 20, kMaxLoadedBytes = 1u << 10;
// Moved between two looks at whether the window still lives.
constexpr std::uint64_t kSliceBytes = 16u << 20;
constexpr std::uint64_t kPartBytes = 64u << 10;
constexpr std::size_t kParts = 4;
// From here on pinned memory is worth the question whether it is pinned.
constexpr std::uint64_t kMinPinnedBytes = 64u << 10;
constexpr std::uint64_t kPatienceNs = 10'000'000'000;

result<unique_fd> take_descriptor(int process, int fd) {
  const int taken = static_cast<int>(syscall(SYS_pidfd_getfd, process, fd, 0));
  if (taken >= 0) return unique_fd(real_device_io(), taken);
  if (errno == EPERM)
    return failure{EPERM,
                   "the kernel does not let this process take the owner's descriptors: run both as one user, with "
                   "kernel.yama.ptrace_scope=0 or CAP_SYS_PTRACE"};
  return failure{errno, format("taking the owner's descriptor %d: %s", fd, errno_text(errno).c_str())};
}

result<std::vector<listed_piece>> read_list(const window_table::name& owner, const window_place& place) {
  const auto list = sealed_memory::open(owner.pid, place.fd, place.inode, list_bytes(1));
  if (!list) return list.error();
  std::uint64_t count = 0;
  const bool has_count = pread(list->fd.get(), &count, sizeof count, 0) == static_cast<ssize_t>(sizeof count);
  if (!has_count || count == 0 || count > kMaxPieces || list->bytes < list_bytes(count))
    return failure{EPROTO, "the owner's list of its window's memory is not one"};
  std::vector<listed_piece> out(count);
  const auto bytes = static_cast<ssize_t>(count * sizeof(listed_piece));
  if (pread(list->fd.get(), out.data(), static_cast<std::size_t>(bytes), offsetof(listed_window, first)) != bytes)
    return failure{EIO, "the owner's list of its window's memory could not be read"};
  return out;
}

}  // namespace

// ---- The owner

result<window_place> gpu_windows::share(std::uint32_t id, const memory& range) {
  auto plan = plan_pin(*context_.cuda, {range.address, range.bytes}, kHostPageBytes, range_rule::exact);
  if (!plan) return plan.error();
  auto space = gpus_.space();
  if (!space) return space.error();
  auto placements = (*space)->resolve(*context_.cuda, *plan);
  if (!placements) return placements.error();
  if (placements->size() > kMaxPieces)
    return failure{ENOTSUP, format("the window lies in %zu objects of the driver: at most %llu can be handed over",
                                   placements->size(), static_cast<unsigned long long>(kMaxPieces))};
  shared_window made;
  std::vector<listed_piece> pieces;
  std::uint64_t begin = plan->rounded.begin;
  for (const rm_placement& one : *placements) {
    const std::uint64_t length = std::min(one.length, plan->rounded.end() - begin);
    if (length == 0) break;
    auto fd = (*space)->client().export_object(one.object->gpu(), one.object->memory());
    if (!fd) return fd.error();
    const auto& pci = one.object->gpu().pci;
    pieces.push_back({fd->get(), pci.domain, pci.bus, pci.device, begin, length, one.offset});
    made.descriptors.push_back(*std::move(fd));
    begin += length;
  }
  if (begin < plan->rounded.end()) return failure{EIO, "libcuda named less memory than it was asked for"};
  auto list = sealed_memory::make("peerlane-gpu-window", list_bytes(pieces.size()));
  if (!list) return list.error();
  const std::uint64_t count = pieces.size();
  const auto bytes = static_cast<ssize_t>(count * sizeof(listed_piece));
  if (pwrite(list->fd.get(), &count, sizeof count, 0) != static_cast<ssize_t>(sizeof count) ||
      pwrite(list->fd.get(), pieces.data(), static_cast<std::size_t>(bytes), offsetof(listed_window, first)) != bytes)
    return failure{EIO, "the list of a window's memory could not be written"};
  const window_place place{window_place::kind::device, list->fd.get(), list->inode, range.address, range.bytes};
  made.list = *std::move(list);
  shared_[id] = std::move(made);
  return place;
}

// ---- A peer

result<gpu_windows::imported> gpu_windows::open(const window_table::name& owner, const window_place& place) {
  const auto pieces = read_list(owner, place);
  if (!pieces) return pieces.error();
  const unique_fd process(real_device_io(), static_cast<int>(syscall(SYS_pidfd_open, owner.pid, 0)));
  if (!process) return failure{errno, format("the window's owner: %s", errno_text(errno).c_str())};
  std::vector<copy::shared_piece> extents;
  std::vector<dma::shared_region> regions;
  for (const listed_piece& one : *pieces) {
    auto fd = take_descriptor(process.get(), one.fd);
    if (!fd) return fd.error();
    extents.push_back({one.begin, one.size_bytes});
    regions.push_back(
        {*std::move(fd), dma::shared_region::kind::device, {one.domain, one.bus, one.device}, one.offset, one.size_bytes});
  }
  auto opened = copy::dma_memory::import(gpus_, extents, regions);
  if (opened && !(*opened)->contains(place.address, place.bytes))
    return failure{EPROTO, "the owner's list does not hold its window"};
  return opened;
}

gpu_windows::staging::~staging() {
  bound = {};
  if (pages != nullptr) munmap(pages, kParts * kPartBytes);
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
  if (known.is_device && !is_of_gpu(*window.gpu(), known)) return std::nullopt;
  route& way = route_of(window.gpu());
  for (std::uint64_t done = 0; done < known.bytes;) {
    const auto extent = window.find(window.gpu(), pointer + done);
    if (!extent) return status(extent.error());
    const std::uint64_t inside = pointer + done - extent->begin;
    const span remote{extent->address + inside, std::min({known.bytes - done, extent->size_bytes - inside, kSliceBytes})};
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
    // Another memory object, of which nothing is known, may follow the first one.
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
  auto moved = is_put ? send_staged(way, remote, own_bytes) : receive_staged(way, remote, own_bytes);
  if (!moved) return moved.error();
  return remote.bytes;
}

result<std::uint64_t> gpu_windows::copy_bound(route& way, const span& remote, const copy::channel_memory::piece& local,
                                              bool is_put, bool is_on_device) {
  using path = copy::gpu_queues::path;
  const std::uint64_t bytes = std::min(remote.bytes, local.size_bytes);
  auto begun = way.queues->copy(is_put || is_on_device ? path::to_device : path::to_host,
                                is_put ? remote.address : local.address, is_put ? local.address : remote.address, bytes);
  if (!begun) return begun.error();
  if (auto done = wait(way, *begun, bytes); !done) return done.error();
  return bytes;
}

status gpu_windows::wait(route& way, const copy::gpu_queues::ticket& begun, std::uint64_t bytes) {
  constexpr std::uint64_t kSlowestBytesPerUs = 100;
  auto done = begun.channel->wait(begun.number, kPatienceNs + bytes / kSlowestBytesPerUs * 1000);
  if (done) return done;
  begun.channel->stop();
  way.queues->forget(begun.channel);
  return failure{done.code(), format("the DMA channel for a window of GPU memory: %s", done.error().message.c_str())};
}

// The CPU fills one part while the engine takes others.
status gpu_windows::send_staged(route& way, const span& remote, const std::byte* source) {
  if (way.outgoing == nullptr) {
    auto made = std::make_unique<staging>();
    void* const pages =
        mmap(nullptr, kParts * kPartBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (pages == MAP_FAILED) return failure{ENOMEM, "no memory for data on its way to a window of GPU memory"};
    made->pages = static_cast<std::byte*>(pages);
    madvise(pages, kParts * kPartBytes, MADV_DONTFORK);  // pinned pages and copy-on-write do not go together
    auto bound = way.queues->addresses().bind_host(pages, kParts * kPartBytes);
    if (!bound) return bound.error();
    made->bound = *std::move(bound);
    way.outgoing = std::move(made);
  }
  std::array<copy::gpu_queues::ticket, kParts> under_way;
  const auto end_part = [&](copy::gpu_queues::ticket& one) {
    return one.channel == nullptr ? status{} : wait(way, std::exchange(one, {}), kPartBytes);
  };
  status outcome;
  for (std::uint64_t done = 0, part = 0; outcome && done < remote.bytes; ++part) {
    const std::uint64_t place = part % kParts, bytes = std::min(kPartBytes, remote.bytes - done);
    if (outcome = end_part(under_way[place]); !outcome) break;
    std::memcpy(way.outgoing->pages + place * kPartBytes, source + done, bytes);
    auto begun = way.queues->copy(copy::gpu_queues::path::to_device, remote.address + done,
                                  way.outgoing->bound.address() + place * kPartBytes, bytes);
    if (begun) under_way[place] = *std::move(begun);
    else outcome = begun.error();
    done += bytes;
  }
  for (auto& one : under_way)
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
  auto done = way.arrivals->read(**channel, remote.address, destination, remote.bytes, kPatienceNs);
  if (!done) way.queues->forget(*channel);
  return done;
}

}  // namespace pl::messaging
