// SPDX-License-Identifier: Apache-2.0
// GPU memory of this process that peers of the node import: descriptors of the driver's objects, and a sealed file that
// lists them. A peer learns the file, takes it and the descriptors (pidfd_getfd), and binds the objects for its own
// channels.
//
// The kernel lets a process take another's descriptors where it also lets it read its memory (one user; with Yama, one
// launcher, os/launcher_siblings.hpp; or CAP_SYS_PTRACE). Descriptors stay open as long as the object lives: what has a
// file's number is what the file lists.
//
// Threads: each object by one thread at a time. Errors: errno values; EPERM has a sentence that says what to do.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/driver_table.hpp"
#include "dma/shared_region.hpp"
#include "map/rm_space.hpp"
#include "os/sealed_memory.hpp"

namespace pl::copy {

// What a peer has to learn of it. Plain bytes, for messages.
struct handed_place {
  std::int32_t fd = -1;  // of the owner
  std::uint64_t inode = 0;
  std::uint64_t address = 0, bytes = 0;  // the owner's
};

class handed_memory {
 public:
  // ENOTSUP: it lies in too many objects, or no descriptors can be had; EINVAL: not GPU memory of this process.
  static result<handed_memory> make(rm_space& space, const cu::driver_table& cuda, address_range range);
  handed_place place() const noexcept { return place_; }

 private:
  std::vector<unique_fd> descriptors_;
  sealed_memory list_;
  handed_place place_;
};

// A piece of it at a peer: `begin` is the owner's address.
struct taken_piece {
  std::uint64_t begin = 0;
  dma::shared_region region;
};
// Of process `pid`. They stay whatever the owner does.
result<std::vector<taken_piece>> fetch_handed_memory(std::int32_t pid, const handed_place& place);

}  // namespace pl::copy
