// SPDX-License-Identifier: Apache-2.0
// The end of another process of this name space of process numbers: by a pidfd, which reports it before the parent has
// reaped the process and never means a later one of the same number. Where none can be had (before Linux 5.3, a container's
// filter, no descriptor left) by its number and the time of its start.
//
// Threads: none of its own; one object is used by one thread at a time.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "os/unique_fd.hpp"

namespace pl {

class process_end {
 public:
  process_end() = default;  // watches nobody
  explicit process_end(pid_t process) noexcept;

  // Also true if there was no such process from the start.
  bool has_ended() const noexcept;
  // Readable once the process has ended; -1: has_ended() must be asked.
  int descriptor() const noexcept { return fd_.get(); }
  // The descriptor is the caller's from now on.
  int release_descriptor() noexcept { return fd_.release(); }
  explicit operator bool() const noexcept { return process_ > 0; }

 private:
  pid_t process_ = 0;
  bool was_gone_ = false;
  std::uint64_t start_ = 0;  // 0: not known
  unique_fd fd_;
};

}  // namespace pl
