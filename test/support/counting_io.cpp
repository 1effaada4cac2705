// SPDX-License-Identifier: Apache-2.0
#include "test/support/counting_io.hpp"

#include <sys/mman.h>

#include <cerrno>

#include "gdrdrv_ioctl.h"
#include "rm/rm_abi.hpp"

namespace pl::test {
namespace {

bool releases(unsigned long request) {
  return request == GDRDRV_IOC_UNPIN_BUFFER || request == rm::ioctl_request(rm::esc_free, sizeof(rm::free_params)) ||
         request == rm::ioctl_request(rm::esc_unmap_memory, sizeof(rm::unmap_params));
}

}  // namespace

bool counting_io::fails() {
  const int before = step_.load();
  if (before < 0) return false;
  if (step_.fetch_sub(1) != 0) return false;
  fired_.store(true);
  errno = code_.load();
  return true;
}

int counting_io::open_descriptors() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(descriptors_.size());
}

std::size_t counting_io::mapped_bytes() const {
  const std::lock_guard lock(mutex_);
  std::size_t total = 0;
  for (const auto& [address, bytes] : ranges_) total += bytes;
  return total;
}

int counting_io::open(const char* path, int flags) {
  if (fails()) return -1;
  const int fd = next_.open(path, flags);
  const int saved = errno;
  if (fd >= 0) {
    const std::lock_guard lock(mutex_);
    descriptors_.insert(fd);
  }
  errno = saved;
  return fd;
}

int counting_io::close(int fd) {
  {
    const std::lock_guard lock(mutex_);
    descriptors_.erase(fd);
  }
  return next_.close(fd);
}

int counting_io::ioctl(int fd, unsigned long request, void* argument) {
  if (!releases(request) && fails()) return -1;
  return next_.ioctl(fd, request, argument);
}

void* counting_io::mmap(void* address, std::size_t size_bytes, int protection, int flags, int fd, off_t offset) {
  const bool puts_back = (flags & MAP_FIXED) != 0 && protection == PROT_NONE;
  constexpr int kFaulting = MAP_SHARED | MAP_FIXED | MAP_NORESERVE;  // faulting_range.cpp: the mapping is gone
  if (!puts_back && fails()) return MAP_FAILED;
  void* got = next_.mmap(address, size_bytes, protection, flags, fd, offset);
  if (got != MAP_FAILED && (flags & MAP_FIXED) == 0) {  // fixed ones lie in a reservation that is counted
    const int saved = errno;
    const std::lock_guard lock(mutex_);
    ranges_[static_cast<char*>(got)] = size_bytes;
    errno = saved;
  }
  if (got != MAP_FAILED && flags == kFaulting) forget(got, size_bytes);
  return got;
}

int counting_io::munmap(void* address, std::size_t size_bytes) {
  const int rc = next_.munmap(address, size_bytes);
  if (rc == 0) forget(address, size_bytes);
  return rc;
}

void counting_io::forget(void* address, std::size_t size_bytes) {
  const int saved = errno;
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(static_cast<char*>(address));
  if (found != ranges_.end() && found->second == size_bytes) ranges_.erase(found);
  errno = saved;
}

int counting_io::madvise(void* address, std::size_t size_bytes, int advice) {
  if (fails()) return -1;
  return next_.madvise(address, size_bytes, advice);
}

}  // namespace pl::test
