// SPDX-License-Identifier: Apache-2.0
// Files of the libraries under a limit on file size (ulimit -f), which also applies to memory files.
#pragma once

#include <pthread.h>

#include <cerrno>
#include <csignal>
#include <ctime>

namespace pl {

// While it exists, a file that would exceed the limit causes only an error (EFBIG): the signal that the kernel also
// sends to this thread (SIGXFSZ) would end the application.
class file_limit_as_error {
 public:
  file_limit_as_error() noexcept {
    sigemptyset(&only_);
    sigaddset(&only_, SIGXFSZ);
    sigset_t pending;
    was_pending_ = sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
    pthread_sigmask(SIG_BLOCK, &only_, &before_);
  }
  file_limit_as_error(const file_limit_as_error&) = delete;
  file_limit_as_error& operator=(const file_limit_as_error&) = delete;
  ~file_limit_as_error() {
    const int saved_errno = errno;
    const timespec at_once{};
    if (!was_pending_) sigtimedwait(&only_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = saved_errno;
  }

 private:
  sigset_t only_, before_;
  bool was_pending_ = false;
};

}  // namespace pl
