// SPDX-License-Identifier: Apache-2.0
#include "shm_lane.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "text.hpp"

namespace pl::link {
namespace {

failure not_shared(const char* step) {
  const int code = errno;
  return failure{code, format("shared memory for packets: %s failed: %s", step, errno_text(code).c_str())};
}

result<shm_lane> map_lane(int fd, int rank) {
  void* const at = mmap(nullptr, shm_lane::kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                        static_cast<off_t>(rank) * static_cast<off_t>(shm_lane::kBytes));
  if (at == MAP_FAILED) return not_shared("mmap");
  madvise(at, shm_lane::kBytes, MADV_DONTFORK);
  return shm_lane(at);
}

}  // namespace

std::byte* shm_lane::reserve(std::size_t bytes) noexcept {
  const std::size_t needed = record(bytes);
  const std::size_t position = at_ % kDataBytes;
  const std::size_t skipped = position + needed > kDataBytes ? kDataBytes - position : 0;
  if (at_ + skipped + needed - other_ > kDataBytes) {
    other_ = control_->read.load(std::memory_order_acquire);
    if (at_ + skipped + needed - other_ > kDataBytes) return nullptr;
  }
  if (skipped != 0) std::memcpy(data_ + position, &kSkip, sizeof kSkip);
  std::byte* const to = data_ + (skipped != 0 ? 0 : position);
  const std::uint64_t length = bytes;
  std::memcpy(to, &length, sizeof length);
  reserved_ = at_ + skipped + needed;
  return to + sizeof length;
}

const std::byte* shm_lane::peek(std::size_t& bytes) noexcept {
  if (at_ == other_) {
    other_ = control_->written.load(std::memory_order_acquire);
    if (at_ == other_) return nullptr;
  }
  std::uint64_t from = at_, length = 0;
  std::memcpy(&length, data_ + from % kDataBytes, sizeof length);
  if (length == kSkip) {
    from += kDataBytes - from % kDataBytes;
    std::memcpy(&length, data_, sizeof length);
  }
  // The other process's memory, not its word: a length that cannot be ends the lane instead of this process.
  if (length > kDataBytes - from % kDataBytes - sizeof length) return nullptr;
  bytes = length;
  reserved_ = from + record(length);
  return data_ + from % kDataBytes + sizeof length;
}

result<shm_outbox> shm_outbox::make(int ranks) {
  shm_outbox out;
  out.fd_ = unique_fd(real_device_io(), memfd_create("peerlane-lanes", MFD_CLOEXEC));
  if (!out.fd_) return not_shared("memfd_create");
  struct stat info {};
  if (ftruncate(out.fd_.get(), static_cast<off_t>(ranks) * static_cast<off_t>(shm_lane::kBytes)) != 0 ||
      fstat(out.fd_.get(), &info) != 0)
    return not_shared("sizing it");
  out.name_ = {getpid(), out.fd_.get(), info.st_ino};
  return out;
}

result<shm_lane> shm_outbox::lane_to(int rank) const { return map_lane(fd_.get(), rank); }

result<shm_lane> shm_outbox::open_lane(const name& of, int rank) {
  const auto path = format("/proc/%d/fd/%d", of.pid, of.fd);
  const unique_fd fd(real_device_io(), ::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) return not_shared(format("opening %s", path.c_str()).c_str());
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return not_shared("fstat");
  const auto needed = (static_cast<off_t>(rank) + 1) * static_cast<off_t>(shm_lane::kBytes);
  if (info.st_ino != of.inode || info.st_size < needed)
    return failure{ESTALE, "shared memory for packets: the file is not the one that was named"};
  return map_lane(fd.get(), rank);
}

void shm_outbox::close(shm_lane& lane) noexcept {
  if (lane.is_open()) munmap(lane.address(), shm_lane::kBytes);
  lane = {};
}

}  // namespace pl::link
