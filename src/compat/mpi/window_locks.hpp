// SPDX-License-Identifier: Apache-2.0
// Locks of a window's targets in memory that all its ranks share: MPI's exclusive and shared locks of passive targets,
// and one for accumulates, which are atomic for each element. The target takes no part in either.
//
// A process that dies holds nothing: the kernel passes a robust mutex on, and whoever waits for an MPI lock checks
// whether its holders are alive.
//
// Thread-safe, but a rank holds only one MPI lock of a target at a time, as MPI requires.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "os/process_end.hpp"

namespace pl::mpi {

class window_locks {
 public:
  static std::size_t bytes_for(int ranks) noexcept;
  // Called by one rank, before any other opens it. `memory` is aligned to 64 bytes.
  static void format(void* memory, int ranks) noexcept;
  // Makes this process known as `rank`; every rank does it before any takes a lock.
  window_locks(void* memory, int ranks, int rank) noexcept;

  // Returns false if another rank holds one that excludes it.
  bool try_lock(int target, bool is_exclusive) noexcept;
  void unlock(int target) noexcept;

  // Excludes the accumulates of all other ranks on this target.
  class element_lock {
   public:
    element_lock(window_locks& owner, int target) noexcept;
    ~element_lock() { pthread_mutex_unlock(mutex_); }
    element_lock(const element_lock&) = delete;
    element_lock& operator=(const element_lock&) = delete;

   private:
    pthread_mutex_t* mutex_;
  };

 private:
  enum holding : std::uint8_t { none, shared, exclusive };
  struct process {
    std::int32_t pid;
    std::uint64_t names;  // the name space of process numbers
  };
  struct target_state {
    pthread_mutex_t guard;  // of its row of holders
    pthread_mutex_t elements;
  };
  target_state& state_of(int target) const noexcept { return states_[target]; }
  holding& held(int target, int rank) const noexcept {
    return holders_[static_cast<std::size_t>(target) * static_cast<std::size_t>(ranks_) + static_cast<std::size_t>(rank)];
  }
  bool has_ended(int rank) noexcept;

  target_state* states_;
  process* processes_;
  holding* holders_;  // of each target by each rank
  int ranks_, rank_;
  std::mutex mutex_;
  std::vector<process_end> watches_;  // by rank; opened for whom we wait for
};

}  // namespace pl::mpi
