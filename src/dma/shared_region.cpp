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
#include <span>
#include <utility>

#include "base/checked_math.hpp"
#include "base/deadline.hpp"
#include "base/text.hpp"
#include "os/descriptor_message.hpp"
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
  if (!shared.fd) return refused("no descriptor was passed");
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
                   format("memory of another process is refused: the descriptor is not one of this GPU's memory (%s)",
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
  if (!cannot_shrink(shared.fd.get()))
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

status send_region(int socket, const shared_region& shared, int flags) {
  if (auto good = check_range(shared); !good) return good;
  region_message message{kMagic,
                         static_cast<std::uint32_t>(shared.memory),
                         shared.gpu.domain,
                         shared.gpu.bus,
                         shared.gpu.device,
                         0,
                         shared.offset,
                         shared.size_bytes};
  ssize_t sent = 0;
  do sent = send_with_descriptor(socket, std::as_bytes(std::span(&message, 1)), shared.fd.get(), flags);
  while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(sizeof message)) return {};
  return failure{sent < 0 ? errno : EIO, format("memory could not be given to another process: %s",
                                                sent < 0 ? errno_text(errno).c_str() : "the socket took a part of it")};
}

// One piece without waiting. False: nothing is there now.
result<bool> region_reader::take_piece(int socket) {
  auto got = receive_with_descriptor(socket, std::span(bytes_).subspan(have_bytes_), MSG_DONTWAIT);
  if (got.bytes < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got.bytes < 0)
    return failure{errno, format("memory of another process did not arrive: %s", errno_text(errno).c_str())};
  if (got.descriptors > 0) fd_ = std::move(got.fd);
  descriptors_ += got.descriptors;
  has_lost_descriptors_ = has_lost_descriptors_ || got.has_lost_some;
  have_bytes_ += static_cast<std::size_t>(got.bytes);
  if (got.bytes == 0)
    return have_bytes_ == 0
               ? failure{EPIPE, "memory of another process did not arrive: the other end has closed"}
               : failure{EPROTO, "memory of another process is refused: the other end has closed in the middle of it"};
  return true;
}

result<std::optional<shared_region>> region_reader::take(int socket) {
  static_assert(kMessageBytes == sizeof(region_message));
  while (have_bytes_ < kMessageBytes) {
    const auto piece = take_piece(socket);
    if (!piece) return piece.error();
    if (!*piece) return std::optional<shared_region>();
  }
  region_message message;
  std::memcpy(&message, bytes_.data(), sizeof message);
  const bool is_known = message.memory == static_cast<std::uint32_t>(shared_region::kind::device) ||
                        message.memory == static_cast<std::uint32_t>(shared_region::kind::host);
  if (message.magic != kMagic || !is_known || descriptors_ != 1 || has_lost_descriptors_)
    return failure{EPROTO, "memory of another process is rejected: expected one region with one descriptor"};
  shared_region out;
  out.fd = std::move(fd_);
  out.memory = static_cast<shared_region::kind>(message.memory);
  out.gpu = {message.domain, message.bus, message.device};
  out.offset = message.offset;
  out.size_bytes = message.size_bytes;
  have_bytes_ = descriptors_ = 0;
  if (auto good = check_range(out); !good) return failure{EPROTO, good.error().message};
  return std::optional(std::move(out));
}

// The limit holds for the whole message: a sender that stops in the middle of it is not waited for.
result<shared_region> receive_region(int socket, int timeout_ms) {
  const std::uint64_t deadline_ns = timeout_ms < 0 ? 0 : deadline_after_ms(timeout_ms);
  region_reader reader;
  for (;;) {
    auto came = reader.take(socket);
    if (!came) return came.error();
    if (*came) return *std::move(*came);
    const std::uint64_t now_ns = monotonic_ns();
    if (timeout_ms >= 0 && now_ns >= deadline_ns)
      return failure{ETIMEDOUT, format("no memory of another process arrived within %d ms", timeout_ms)};
    pollfd asked{socket, POLLIN, 0};
    poll(&asked, 1, timeout_ms < 0 ? -1 : static_cast<int>((deadline_ns - now_ns) / 1'000'000) + 1);
  }
}

}  // namespace pl::dma
