// SPDX-License-Identifier: Apache-2.0
// Our calls return a value and leave errno alone, even if system calls fail on the way to a success (a missing
// backend). Every call that may reach the kernel or CUDA uses one of these.
#pragma once

#include <cerrno>

namespace pl {

class [[nodiscard]] errno_keeper {
 public:
  errno_keeper() = default;
  ~errno_keeper() { errno = saved_; }
  errno_keeper(const errno_keeper&) = delete;
  errno_keeper& operator=(const errno_keeper&) = delete;

 private:
  int saved_ = errno;
};

}  // namespace pl
