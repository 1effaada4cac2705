// SPDX-License-Identifier: Apache-2.0
// The public copy of a window's device memory, in host memory, where any MPI reaches it: MPI's separate memory model,
// in which the owner's accesses and the others' puts meet only at synchronization calls.
//
// A third copy reveals each side's changes since the last synchronization, so that neither undoes the other's. All of
// the window passes through the CPU at each call.
//
// One thread at a time, the owner's. MPI may write to data() meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.hpp"
#include "compat/mpi/staging_pool.hpp"

namespace pl::mpi {

class public_copy {
 public:
  // Copies this device memory as it is now. ENOMEM; EINVAL if it is not within one allocation.
  static result<std::unique_ptr<public_copy>> make(std::uint64_t device, std::size_t bytes);
  std::byte* data() const noexcept { return public_.data(); }
  // Copies what the owner has changed to the public copy.
  status publish();
  // Copies what others have changed there to device memory.
  status adopt();

 private:
  public_copy(std::uint64_t device, std::size_t bytes) : device_(device), bytes_(bytes), met_(bytes) {}
  status adopt_chunk(std::size_t begin, std::size_t bytes);
  std::uint64_t device_;
  std::size_t bytes_;
  staging_pool::block public_, chunk_;
  std::vector<std::byte> met_;  // both as of the last call
};

}  // namespace pl::mpi
