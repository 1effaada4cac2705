// SPDX-License-Identifier: Apache-2.0
// The system's calls, passed on: for benchmarks that change some of them.
#pragma once

#include "os/device_io.hpp"

namespace pl::bench {

class forwarding_io : public device_io {
 public:
  int open(const char* path, int flags) override { return real_.open(path, flags); }
  int close(int fd) override { return real_.close(fd); }
  int ioctl(int fd, unsigned long request, void* argument) override { return real_.ioctl(fd, request, argument); }
  void* mmap(void* address, std::size_t size_bytes, int protection, int flags, int fd, off_t offset) override {
    return real_.mmap(address, size_bytes, protection, flags, fd, offset);
  }
  int munmap(void* address, std::size_t size_bytes) override { return real_.munmap(address, size_bytes); }
  int madvise(void* address, std::size_t size_bytes, int advice) override {
    return real_.madvise(address, size_bytes, advice);
  }
  void clear_event(int fd) override { real_.clear_event(fd); }
  result<std::string> read_text(const char* path) override { return real_.read_text(path); }

 private:
  device_io& real_ = real_device_io();
};

}  // namespace pl::bench
