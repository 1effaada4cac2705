// SPDX-License-Identifier: Apache-2.0
// Our calls return a value and leave errno alone, even if system calls fail on the way to a success (a missing
// backend). Every call that may reach the kernel or CUDA uses one of these.
#pragma once

#include <cerrno>

namespace pl {

class [[nodiscard]] errno_guard {
 public:
  errno_guard() = default;
  ~errno_guard() { errno = saved_; }
  errno_guard(const errno_guard&) = delete;
  errno_guard& operator=(const errno_guard&) = delete;

 private:
  int saved_ = errno;
};

}  // namespace pl
