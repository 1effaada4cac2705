// SPDX-License-Identifier: Apache-2.0
#include "dma/shared_region.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/checked_math.hpp"
#include "base/text.hpp"
#include "os/sealed_memory.hpp"

namespace pl::dma {
namespace {

constexpr std::uint32_t kMagic = 0x31524c50;  // "PLR1"

// Beside the descriptor. Both ends are on one machine.
struct region_message {
  std::uint32_t magic, memory;
  std::uint32_t domain, bus, device, pad;
  std::uint64_t offset, size_bytes;
};
static_assert(sizeof(region_message) == 40);

std::uint64_t page_bytes() { return static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)); }

failure refused(const char* reason) { return {EINVAL, format("memory of another process is refused: %s", reason)}; }

status check_range(const shared_region& shared) {
  if (!shared.fd) return refused("there is no descriptor");
  const auto end = checked_add(shared.offset, shared.size_bytes);
  const bool has_pages = shared.offset % page_bytes() == 0 && shared.size_bytes % page_bytes() == 0;
  if (shared.size_bytes == 0 || !has_pages || !end) return refused("its range is not one of whole pages");
  return {};
}

}  // namespace

// ---- GPU memory

result<shared_region> export_region(const region& memory) {
  if (!memory) return failure{EINVAL, "a region that is not bound cannot be given to another process"};
  if (memory.kind() == rm::channel_objects::memory_kind::host)
    return failure{ENOTSUP,
                   "pages of this process cannot be given to another: use memory that was made for it (shared_host)"};
  rm::channel_objects& objects = memory.space()->objects();
  auto fd = objects.owner().export_object(memory.owner(), memory.memory());
  if (!fd) return fd.error();
  shared_region out;
  out.fd = *std::move(fd);
  out.gpu = memory.owner().pci;
  out.offset = memory.offset();
  out.size_bytes = memory.size_bytes();
  return out;
}

result<region> import_region(address_space& space, const shared_region& shared) {
  if (shared.memory != shared_region::kind::device) return refused("it is host memory, which is mapped (shared_host)");
  if (auto good = check_range(shared); !good) return good.error();
  rm::channel_objects& objects = space.objects();
  auto owner = objects.owner().find_gpu(shared.gpu);
  if (!owner)
    return failure{owner.code(), format("memory of another process is refused: %s", owner.error().message.c_str())};
  if (status reached = space.reach(**owner); !reached) return reached.error();
  auto share = objects.owner().import(**owner, shared.fd.get());
  if (!share)
    return failure{share.code() == ENOMEM ? ENOMEM : EINVAL,
                   format("memory of another process is refused: the descriptor does not stand for memory of this GPU (%s)",
                          share.error().message.c_str())};
  return space.bind_import(*share, shared.offset, shared.size_bytes, *owner);
}

// ---- Host memory

shared_host::~shared_host() {
  if (data_ != nullptr) munmap(data_, size_bytes_);
}

void shared_host::swap(shared_host& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
}

result<shared_host> shared_host::make(std::size_t size_bytes) {
  if (size_bytes == 0 || size_bytes > SIZE_MAX - page_bytes()) return failure{EINVAL, "shared host memory of no size"};
  shared_region made;
  made.memory = shared_region::kind::host;
  made.size_bytes = (size_bytes + page_bytes() - 1) / page_bytes() * page_bytes();
  auto memory = sealed_memory::make("peerlane-shared", made.size_bytes);
  if (!memory) return memory.error();
  made.fd = std::move(memory->fd);
  return open(made);
}

result<shared_host> shared_host::open(const shared_region& shared) {
  if (shared.memory != shared_region::kind::host) return refused("it is GPU memory");
  if (auto good = check_range(shared); !good) return good.error();
  const int seals = fcntl(shared.fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return failure{EPROTO, "memory of another process is refused: its size is not sealed, so it could vanish while in use"};
  struct stat info {};
  if (fstat(shared.fd.get(), &info) != 0 || static_cast<std::uint64_t>(info.st_size) < shared.offset + shared.size_bytes)
    return refused("the descriptor's file is shorter than the range");
  shared_host out;
  const int own = fcntl(shared.fd.get(), F_DUPFD_CLOEXEC, 0);
  if (own < 0) return failure{errno, format("no descriptor for shared host memory: %s", errno_text(errno).c_str())};
  out.fd_ = unique_fd(real_device_io(), own);
  void* const mapped =
      mmap(nullptr, shared.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, own, static_cast<off_t>(shared.offset));
  if (mapped == MAP_FAILED)
    return failure{errno, format("shared host memory of %s cannot be mapped: %s", format_size(shared.size_bytes).c_str(),
                                 errno_text(errno).c_str())};
  out.data_ = static_cast<std::byte*>(mapped);
  out.size_bytes_ = shared.size_bytes;
  madvise(mapped, out.size_bytes_, MADV_DONTFORK);  // pinned pages and copy-on-write do not go together
  return out;
}

result<shared_region> shared_host::share() const {
  shared_region out;
  out.memory = shared_region::kind::host;
  out.size_bytes = size_bytes_;
  const int own = fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0);
  if (own < 0) return failure{errno, format("no descriptor for shared host memory: %s", errno_text(errno).c_str())};
  out.fd = unique_fd(real_device_io(), own);
  return out;
}

// ---- The socket

status send_region(int socket, const shared_region& shared) {
  if (auto good = check_range(shared); !good) return good;
  region_message message{kMagic,
                         static_cast<std::uint32_t>(shared.memory),
                         shared.gpu.domain,
                         shared.gpu.bus,
                         shared.gpu.device,
                         0,
                         shared.offset,
                         shared.size_bytes};
  iovec bytes{&message, sizeof message};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  header.msg_control = room;
  header.msg_controllen = sizeof room;
  cmsghdr* const rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = shared.fd.get();
  std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
  ssize_t sent = 0;
  do sent = sendmsg(socket, &header, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(sizeof message)) return {};
  return failure{sent < 0 ? errno : EIO, format("memory could not be given to another process: %s",
                                                sent < 0 ? errno_text(errno).c_str() : "the socket took a part of it")};
}

result<shared_region> receive_region(int socket, int timeout_ms) {
  pollfd asked{socket, POLLIN, 0};
  int ready = 0;
  do ready = poll(&asked, 1, timeout_ms);
  while (ready < 0 && errno == EINTR);
  if (ready == 0) return failure{ETIMEDOUT, format("no memory of another process came within %d ms", timeout_ms)};
  region_message message{};
  iovec bytes{&message, sizeof message};
  constexpr std::size_t kMaxDescriptors = 8;  // more than belong here: all are closed
  alignas(cmsghdr) char room[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  header.msg_control = room;
  header.msg_controllen = sizeof room;
  ssize_t got = 0;
  do got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_WAITALL);
  while (got < 0 && errno == EINTR);
  if (got < 0) return failure{errno, format("memory of another process did not come: %s", errno_text(errno).c_str())};
  shared_region out;
  std::size_t descriptors = 0;
  for (cmsghdr* one = CMSG_FIRSTHDR(&header); one != nullptr; one = CMSG_NXTHDR(&header, one)) {
    if (one->cmsg_level != SOL_SOCKET || one->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t place = 0; CMSG_LEN(place + sizeof(int)) <= one->cmsg_len; place += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(one) + place, sizeof fd);
      out.fd = unique_fd(real_device_io(), fd);  // the one before it closes
      ++descriptors;
    }
  }
  if (got == 0) return failure{EPIPE, "memory of another process did not come: the other end has closed"};
  const bool is_known = message.memory == static_cast<std::uint32_t>(shared_region::kind::device) ||
                        message.memory == static_cast<std::uint32_t>(shared_region::kind::host);
  if (got != static_cast<ssize_t>(sizeof message) || message.magic != kMagic || !is_known || descriptors != 1 ||
      (header.msg_flags & MSG_CTRUNC) != 0)
    return failure{EPROTO, "memory of another process is refused: what came is not one region with one descriptor"};
  out.memory = static_cast<shared_region::kind>(message.memory);
  out.gpu = {message.domain, message.bus, message.device};
  out.offset = message.offset;
  out.size_bytes = message.size_bytes;
  if (auto good = check_range(out); !good) return failure{EPROTO, good.error().message};
  return out;
}

}  // namespace pl::dma
