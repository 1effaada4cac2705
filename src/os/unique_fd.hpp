// SPDX-License-Identifier: Apache-2.0
// Owner of a file descriptor opened through a device_io (device_io.hpp).
#pragma once

#include <utility>

#include "os/device_io.hpp"

namespace pl {

class unique_fd {
 public:
  unique_fd() = default;
  unique_fd(device_io& io, int fd) noexcept : io_(&io), fd_(fd) {}
  unique_fd(unique_fd&& other) noexcept : io_(other.io_), fd_(other.release()) {}
  unique_fd& operator=(unique_fd&& other) noexcept {
    if (this != &other) {
      reset();
      io_ = other.io_;
      fd_ = other.release();
    }
    return *this;
  }
  unique_fd(const unique_fd&) = delete;
  unique_fd& operator=(const unique_fd&) = delete;
  ~unique_fd() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  int release() noexcept { return std::exchange(fd_, -1); }
  void reset() noexcept {
    if (fd_ >= 0) io_->close(release());
  }

 private:
  device_io* io_ = nullptr;
  int fd_ = -1;
};

}  // namespace pl
