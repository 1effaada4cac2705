// SPDX-License-Identifier: Apache-2.0
// Every system call that a mapping backend makes, as one replaceable object: tests can use a fake kernel, or let the
// k-th call fail. Conventions are libc's: -1 / MAP_FAILED and errno. Implementations are thread-safe.
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
  // Clears the wakeups that a device descriptor has had; the next one makes it readable again. On a real device file,
  // polling itself clears it, so any poll() that has seen it readable has done the same.
  virtual void clear_event(int fd);
  // The whole text of a small file (procfs, sysfs). ENOENT and others as the error's code.
  virtual result<std::string> read_text(const char* path) = 0;
};

// The real kernel. Lives as long as the process.
device_io& real_device_io();

// The object that sessions use by default: real_device_io() unless a test replaced it (null restores it).
device_io& default_device_io();
void set_default_device_io_for_tests(device_io* io);

}  // namespace pl
