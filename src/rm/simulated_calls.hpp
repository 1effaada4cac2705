// SPDX-License-Identifier: Apache-2.0
// The system calls of the simulated GPU's resource manager, as its libcuda.so.1 exports them.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace pl::rm {

// libc's conventions: -1 or MAP_FAILED, and errno. Other descriptors, paths and memory are passed to the kernel.
// Thread-safe.
struct simulated_calls {
  static constexpr unsigned kVersion = 2;

  unsigned version;
  int (*open)(const char* path, int flags);
  int (*close)(int fd);
  int (*ioctl)(int fd, unsigned long request, void* argument);
  void* (*mmap)(void* address, std::size_t size_bytes, int protection, int flags, int fd, off_t offset);
  int (*munmap)(void* address, std::size_t size_bytes);
  int (*madvise)(void* address, std::size_t size_bytes, int advice);
  void (*clear_event)(int fd);
  // What the driver has in procfs and sysfs: returns the text's length, and at most `room` bytes of it in `out`. -1 and
  // ENOENT for the driver's other files; -1 and EXDEV for files that are not the driver's.
  ssize_t (*read_text)(const char* path, char* out, std::size_t room);
};

inline constexpr const char* kSimulatedCallsSymbol = "peerlaneSimSystemCalls";
using simulated_calls_function = const simulated_calls* (*)();

}  // namespace pl::rm
