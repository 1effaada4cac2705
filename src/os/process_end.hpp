// SPDX-License-Identifier: Apache-2.0
// Detects the end of another process in this pid namespace. A pidfd reports it before the parent has reaped the
// process, and never refers to a later process with the same number. If there is no pidfd (before Linux 5.3, a
// container's filter, no descriptor left), the number and start time are used.
//
// Has no thread of its own; one object is used by one thread at a time.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "os/unique_fd.hpp"

namespace pl {

class process_end {
 public:
  process_end() = default;  // watches no process
  explicit process_end(pid_t process) noexcept;

  // Also true if there was no such process to begin with.
  bool has_ended() const noexcept;
  // Readable once the process has ended; -1: poll has_ended() instead.
  int descriptor() const noexcept { return fd_.get(); }
  // Passes the descriptor to the caller.
  int release_descriptor() noexcept { return fd_.release(); }
  explicit operator bool() const noexcept { return process_ > 0; }

 private:
  pid_t process_ = 0;
  bool was_gone_ = false;
  std::uint64_t start_ = 0;  // 0: unknown
  unique_fd fd_;
};

}  // namespace pl
