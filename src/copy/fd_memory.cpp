// SPDX-License-Identifier: Apache-2.0
#include "copy/fd_memory.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "base/text.hpp"
#include "map/device_range.hpp"
#include "os/device_io.hpp"

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438  // headers before Linux 5.6; one number for all machines
#endif

namespace pl::copy {
namespace {

// The file that lists the objects of the memory.
struct listed_piece {
  std::int32_t fd = -1;
  std::uint32_t domain = 0, bus = 0, device = 0;
  std::uint64_t begin = 0, size_bytes = 0;  // in the owner's addresses
  std::uint64_t offset = 0;                 // in the driver's object
};
struct listed_memory {
  std::uint64_t pieces = 0;
  listed_piece first[1];
};
constexpr std::uint64_t kMaxPieces = 4096;
constexpr std::size_t list_bytes(std::uint64_t pieces) {
  return offsetof(listed_memory, first) + static_cast<std::size_t>(pieces) * sizeof(listed_piece);
}

result<unique_fd> take_descriptor(int process, int fd) {
  const int taken = static_cast<int>(syscall(SYS_pidfd_getfd, process, fd, 0));
  if (taken >= 0) return unique_fd(real_device_io(), taken);
  if (errno == EPERM)
    return failure{EPERM,
                   "the kernel does not let this process take the owner's descriptors: run both as one user, started by "
                   "one launcher, or with kernel.yama.ptrace_scope=0 or CAP_SYS_PTRACE"};
  return failure{errno, format("taking the owner's descriptor %d: %s", fd, errno_text(errno).c_str())};
}

result<std::vector<listed_piece>> read_list(std::int32_t pid, const fd_memory_location& place) {
  const auto list = sealed_memory::open(pid, place.fd, place.inode, list_bytes(1));
  if (!list) return list.error();
  std::uint64_t count = 0;
  const bool has_count = pread(list->fd.get(), &count, sizeof count, 0) == static_cast<ssize_t>(sizeof count);
  if (!has_count || count == 0 || count > kMaxPieces || list->bytes < list_bytes(count))
    return failure{EPROTO, "the owner's list of its GPU memory is not one"};
  std::vector<listed_piece> out(count);
  const auto bytes = static_cast<ssize_t>(count * sizeof(listed_piece));
  if (pread(list->fd.get(), out.data(), static_cast<std::size_t>(bytes), offsetof(listed_memory, first)) != bytes)
    return failure{EIO, "the owner's list of its GPU memory could not be read"};
  return out;
}

}  // namespace

result<fd_memory> fd_memory::make(rm_space& space, const cu::driver_table& cuda, address_range range) {
  auto plan = plan_pin(cuda, range, kHostPageBytes, range_rule::exact);
  if (!plan) return plan.error();
  auto placements = space.resolve(cuda, *plan);
  if (!placements) return placements.error();
  if (placements->size() > kMaxPieces)
    return failure{ENOTSUP, format("the memory consists of %zu driver objects; at most %llu can be shared",
                                   placements->size(), static_cast<unsigned long long>(kMaxPieces))};
  fd_memory made;
  std::vector<listed_piece> pieces;
  std::uint64_t begin = plan->rounded.begin;
  for (const rm_placement& one : *placements) {
    const std::uint64_t length = std::min(one.length, plan->rounded.end() - begin);
    if (length == 0) break;
    auto fd = space.client().export_object(one.object->gpu(), one.object->memory());
    if (!fd) return fd.error();
    const auto& pci = one.object->gpu().pci;
    pieces.push_back({fd->get(), pci.domain, pci.bus, pci.device, begin, length, one.offset});
    made.descriptors_.push_back(*std::move(fd));
    begin += length;
  }
  if (begin < plan->rounded.end()) return failure{EIO, "libcuda named less memory than it was asked for"};
  auto list = sealed_memory::make("peerlane-gpu-memory", list_bytes(pieces.size()));
  if (!list) return list.error();
  const std::uint64_t count = pieces.size();
  const auto bytes = static_cast<ssize_t>(count * sizeof(listed_piece));
  if (pwrite(list->fd.get(), &count, sizeof count, 0) != static_cast<ssize_t>(sizeof count) ||
      pwrite(list->fd.get(), pieces.data(), static_cast<std::size_t>(bytes), offsetof(listed_memory, first)) != bytes)
    return failure{EIO, "the list of GPU memory for other processes could not be written"};
  made.place_ = {list->fd.get(), list->inode, range.begin, range.size_bytes};
  made.list_ = *std::move(list);
  return made;
}

result<std::vector<taken_piece>> fetch_fd_memory(std::int32_t pid, const fd_memory_location& place) {
  const auto pieces = read_list(pid, place);
  if (!pieces) return pieces.error();
  const unique_fd process(real_device_io(), static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!process) return failure{errno, format("the memory's owner: %s", errno_text(errno).c_str())};
  std::vector<taken_piece> out;
  for (const listed_piece& one : *pieces) {
    auto fd = take_descriptor(process.get(), one.fd);
    if (!fd) return fd.error();
    out.push_back(
        {one.begin,
         {*std::move(fd), dma::shared_region::kind::device, {one.domain, one.bus, one.device}, one.offset, one.size_bytes}});
  }
  return out;
}

}  // namespace pl::copy
