// SPDX-License-Identifier: Apache-2.0
// Stand-ins of a one-sided operation that MPI has under way. Its window's synchronization ends it, and its request, if it
// has one: whichever comes first.
#pragma once

#include <mutex>
#include <utility>

#include "compat/mpi/staged.hpp"

namespace pl::mpi {

class staged_operation {
 public:
  explicit staged_operation(int rank) : target(rank) {}
  // MPI has ended it: the result is stored, once. An MPI code. Thread-safe.
  int finish() {
    const std::lock_guard held(mutex_);
    if (std::exchange(is_finished_, true)) return MPI_SUCCESS;
    const int code = result.store();
    origin = staged(), compare = staged(), result = staged();
    return code;
  }

  staged origin, compare, result;
  const int target;

 private:
  std::mutex mutex_;
  bool is_finished_ = false;
};

}  // namespace pl::mpi
