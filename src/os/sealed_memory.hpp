// SPDX-License-Identifier: Apache-2.0
// Shared memory for another process: an unnamed file whose size nobody can change any more. A process that shrank the file
// of a mapping would end everybody who touches the lost pages with SIGBUS.
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

  // Zeroed. `label` is what /proc/PID/maps shows.
  static result<sealed_memory> make(const char* label, std::size_t bytes);
  // The file `fd` of process `pid`, for reading and writing. ESTALE: it is another file than `inode`, or shorter than
  // `least_bytes`. EPROTO: its size is not sealed. EPERM, ENOENT: the two may not reach each other's files.
  static result<sealed_memory> open(std::int32_t pid, std::int32_t fd, std::uint64_t inode, std::uint64_t least_bytes);
};

// Whether nobody can shrink this file any more, which would end whoever touches the lost pages of a mapping.
bool cannot_shrink(int fd) noexcept;

}  // namespace pl
