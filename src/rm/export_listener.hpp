// SPDX-License-Identifier: Apache-2.0
// Finds the RM memory objects behind a CUDA address. libcuda passes them to the kernel each time it exports a range as
// a dma-buf (ioctl 217); this file requests such an export and records the call.
//
// libcuda calls libc's ioctl through its import table. One slot there is redirected to our function, once per process
// and permanently. The function checks a thread-local pointer and otherwise passes the call on, so calls of other
// threads and all other ioctls are unaffected. Nothing else in the process is changed.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.hpp"
#include "cuda/driver_table.hpp"
#include "rm/rm_abi.hpp"

namespace pl::rm {

// One object behind part of a range: bytes [offset, offset + size) of the object.
struct backing_piece {
  handle client = 0;
  handle object = 0;
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;
};

// The objects behind [pointer, pointer + size_bytes), in address order; their sizes add up to size_bytes. The range
// must be host-page aligned. EINVAL with CUDA's reason if CUDA does not export it (managed memory, freed ...). ENOTSUP
// if libcuda has no import slot for ioctl, or does not make the export call as expected.
result<std::vector<backing_piece>> find_backing(const cu::driver_table& cuda, std::uint64_t pointer,
                                                std::uint64_t size_bytes);

// Installs the hook if it is not installed yet. ENOTSUP with the reason on failure.
status install_export_listener(const cu::driver_table& cuda);

}  // namespace pl::rm
