// SPDX-License-Identifier: Apache-2.0
// Stand-ins of a one-sided operation that MPI has in progress. Its window's synchronization or its request, if it has
// one, completes it, whichever comes first.
#pragma once

#include <atomic>
#include <mutex>

#include "compat/mpi/staged.hpp"

namespace pl::mpi {

class staged_operation {
 public:
  staged_operation(MPI_Win handle, int rank) : target(rank), window_(handle) {}
  // Its window's synchronization has ended it: the result is stored, once. An MPI code. Thread-safe, as the next.
  int finish() {
    return finish_after([] { return MPI_SUCCESS; });
  }
  // Its request has ended. MPICH 4.0.2 says so before the rows of an MPI_Rget are there, of host memory too.
  int finish_request() {
    return finish_after([&] { return PMPI_Win_flush_local(target, window_); });
  }

  // Its result has been stored.
  bool is_finished() const noexcept { return is_finished_.load(std::memory_order_acquire); }

  staged origin, compare, result;
  const int target;

 private:
  template <class Wait>
  int finish_after(Wait wait) {
    const std::lock_guard held(mutex_);
    if (is_finished()) return MPI_SUCCESS;
    int code = result.is_host_copy() ? wait() : MPI_SUCCESS;
    if (code == MPI_SUCCESS) code = result.store();
    origin = staged(), compare = staged(), result = staged();
    is_finished_.store(true, std::memory_order_release);
    return code;
  }

  const MPI_Win window_;
  std::mutex mutex_;
  std::atomic<bool> is_finished_{false};
};

}  // namespace pl::mpi
