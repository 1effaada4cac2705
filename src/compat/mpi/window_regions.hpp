// SPDX-License-Identifier: Apache-2.0
// Device memory that ranks of one host have attached to a dynamic window, in memory that they all share: MPI tells no rank
// of it, and its targets are addresses in their owners' processes.
//
// Thread-safe, and safe among the processes.
#pragma once

#include <pthread.h>

#include <atomic>
#include <optional>

#include "compat/mpi/window_memory.hpp"

namespace pl::mpi {

class window_regions {
 public:
  struct region {
    address_range bytes;     // in the owner's process
    exported_memory memory;  // whose offset is that of `bytes`
    std::uint64_t serial;    // never twice for one rank; 0: free
  };
  static constexpr std::size_t kMaxRegions = 128;  // of one rank at a time

  static std::size_t bytes_for(int ranks) noexcept;
  // Called by one rank, before any other opens it. `memory` is aligned to 64 bytes.
  static void format(void* memory, int ranks) noexcept;
  window_regions(void* memory, int rank) noexcept;

  // EEXIST: some of the bytes are attached. ENOSPC: this rank has attached kMaxRegions.
  status attach(address_range bytes, const exported_memory& memory);
  // Returns false if nothing that begins there is attached.
  bool detach(std::uint64_t begin) noexcept;

  // One load.
  bool is_empty(int target) const noexcept;
  // One that holds some of these bytes.
  std::optional<region> find(int target, address_range bytes) const noexcept;
  bool has(int target, std::uint64_t serial) const noexcept;

 private:
  struct table {
    pthread_mutex_t guard;
    std::atomic<std::uint64_t> count;
    std::uint64_t last_serial;
    region regions[kMaxRegions];
  };
  table* tables_;
  int rank_;
};

}  // namespace pl::mpi
