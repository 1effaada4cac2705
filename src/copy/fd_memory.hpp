// SPDX-License-Identifier: Apache-2.0
// GPU memory of this process for import by peers on the node: descriptors of the driver's objects, and a sealed file
// that lists them. A peer learns the file, takes it and the descriptors (pidfd_getfd), and binds the objects for its
// own channels.
//
// The kernel lets a process take another's descriptors if it may also read its memory (same user; with Yama, same
// launcher, os/launcher_siblings.hpp; or CAP_SYS_PTRACE). Descriptors stay open as long as the object lives, so a
// descriptor number in the file always names what the file says.
//
// Each object is used by one thread at a time. Errors are errno values; EPERM comes with advice.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/driver_table.hpp"
#include "dma/shared_region.hpp"
#include "map/rm_space.hpp"
#include "os/sealed_memory.hpp"

namespace pl::copy {

// What a peer has to learn of it. Plain bytes, for messages.
struct fd_memory_location {
  std::int32_t fd = -1;  // of the owner
  std::uint64_t inode = 0;
  std::uint64_t address = 0, bytes = 0;  // the owner's
};

class fd_memory {
 public:
  // ENOTSUP: it lies in too many objects, or there are no descriptors. EINVAL: not GPU memory of this process.
  static result<fd_memory> make(rm_space& space, const cu::driver_table& cuda, address_range range);
  fd_memory_location place() const noexcept { return place_; }

 private:
  std::vector<unique_fd> descriptors_;
  sealed_memory list_;
  fd_memory_location place_;
};

// A piece of it at a peer; `begin` is the owner's address.
struct taken_piece {
  std::uint64_t begin = 0;
  dma::shared_region region;
};
// Takes the pieces from process `pid`. They stay valid whatever the owner does.
result<std::vector<taken_piece>> fetch_fd_memory(std::int32_t pid, const fd_memory_location& place);

}  // namespace pl::copy
