// SPDX-License-Identifier: Apache-2.0
// Sends a descriptor together with bytes over a unix socket (SCM_RIGHTS).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>

#include "os/unique_fd.hpp"

namespace pl {

// One sendmsg() with `flags` and MSG_NOSIGNAL. Returns how many bytes were taken, the first of them with the
// descriptor; otherwise -1 and errno. Precondition: at least one byte.
ssize_t send_with_descriptor(int socket, std::span<const std::byte> bytes, int fd, int flags = 0) noexcept;

struct received_bytes {
  ssize_t bytes = -1;           // as returned by recvmsg(): 0 at the end, -1 and errno on failure
  unique_fd fd;                 // the last one received: a sender may put several into a message, and none may leak
  std::size_t descriptors = 0;  // received descriptors that fitted
  bool has_lost_some = false;   // descriptors that did not fit; the kernel has closed them
};

// One recvmsg() with `flags`; received descriptors are close-on-exec.
received_bytes receive_with_descriptor(int socket, std::span<std::byte> room, int flags = 0) noexcept;

}  // namespace pl
