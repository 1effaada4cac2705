// SPDX-License-Identifier: Apache-2.0
// Our calls answer with a value and leave the variable errno alone, also where the system calls behind them fail on the way
// to a success (a backend that is not there). Every call that may reach the kernel or CUDA holds one of these.
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
