// SPDX-License-Identifier: Apache-2.0
// Shared memory for another process: an unnamed file whose size can no longer change. A process that shrank a mapped
// file would kill everybody who accesses the lost pages by SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.hpp"
#include "os/unique_fd.hpp"

namespace pl {

struct sealed_memory {
  unique_fd fd;
  std::uint64_t inode = 0;
  std::uint64_t bytes = 0;

  // Zeroed. `label` appears in /proc/PID/maps.
  static result<sealed_memory> make(const char* label, std::size_t bytes);
  // Opens the file `fd` of process `pid` for reading and writing. ESTALE: it is not the file `inode`, or shorter than
  // `least_bytes`. EPROTO: its size is not sealed. EPERM, ENOENT: the two processes may not access each other's files.
  static result<sealed_memory> open(std::int32_t pid, std::int32_t fd, std::uint64_t inode, std::uint64_t least_bytes);
};

// Whether nobody can shrink this file any more, which would kill whoever accesses the lost pages of a mapping.
bool cannot_shrink(int fd) noexcept;

}  // namespace pl
