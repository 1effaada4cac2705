// SPDX-License-Identifier: Apache-2.0
#include "os/faulting_range.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace pl {
namespace {

std::atomic<int> g_ranges{0};

// An access past the end of a file raises SIGBUS: the file is empty, and the seals keep it so.
bool map_empty_file(device_io& io, void* address, std::size_t size_bytes) noexcept {
  const int file = memfd_create("peerlane-forgotten", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return false;
  bool is_done = fcntl(file, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SEAL) == 0;
  constexpr int kFlags = MAP_SHARED | MAP_FIXED | MAP_NORESERVE;
  is_done = is_done && io.mmap(address, size_bytes, PROT_READ | PROT_WRITE, kFlags, file, 0) != MAP_FAILED;
  ::close(file);  // the range keeps the file
  return is_done;
}

}  // namespace

void leave_faulting_range(device_io& io, void* address, std::size_t size_bytes) noexcept {
  const int saved_errno = errno;
  const bool has_room = g_ranges.fetch_add(1, std::memory_order_relaxed) < kMaxFaultingRanges;
  if (!has_room || !map_empty_file(io, address, size_bytes)) {
    g_ranges.fetch_sub(1, std::memory_order_relaxed);
    io.munmap(address, size_bytes);
  }
  errno = saved_errno;
}

void recount_faulting_ranges_for_tests() noexcept { g_ranges.store(0, std::memory_order_relaxed); }

}  // namespace pl
