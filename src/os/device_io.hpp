// SPDX-License-Identifier: Apache-2.0
// Every system call that a mapping backend makes, as one replaceable object: tests put a fake kernel behind it, or let
// its k-th call fail. Conventions are libc's: -1 / MAP_FAILED and errno. Implementations are thread-safe.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

#include "base/status.hpp"

namespace pl {

class device_io {
 public:
  virtual ~device_io() = default;
  virtual int open(const char* path, int flags) = 0;
  virtual int close(int fd) = 0;
  virtual int ioctl(int fd, unsigned long request, void* argument) = 0;
  virtual void* mmap(void* address, std::size_t size_bytes, int protection, int flags, int fd, off_t offset) = 0;
  virtual int munmap(void* address, std::size_t size_bytes) = 0;
  virtual int madvise(void* address, std::size_t size_bytes, int advice) = 0;
  // Forgets the wake-ups that a device descriptor has had: it is readable again at the next one. On a real device file the
  // look itself clears it, so any poll() that has seen it readable has done the same.
  virtual void clear_event(int fd);
  // Whole text of a small file (procfs, sysfs); ENOENT and friends as the error's code.
  virtual result<std::string> read_text(const char* path) = 0;
};

// The real kernel. Lives as long as the process.
device_io& real_device_io();

// The one that sessions use when none is given: real_device_io() unless a test replaced it (null restores it).
device_io& default_device_io();
void set_default_device_io_for_tests(device_io* io);

}  // namespace pl
