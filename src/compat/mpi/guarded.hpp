// SPDX-License-Identifier: Apache-2.0
// The common frame of every function that replaces an MPI function.
#pragma once

#include <new>
#include <utility>

#include "compat/mpi/request_table.hpp"

namespace pl::mpi {

// For calls with device memory: `work` returns an MPI error code, and C programs get no exception. `raise_error` runs
// the error handler of the call's communicator, window or file, whose handles may have the same type.
template <class Raise, class Work>
int guarded_with(Raise raise_error, Work work) {
  requests().progress();
  try {
    return work();
  } catch (const std::bad_alloc&) { return raise_error(MPI_ERR_NO_MEM); }
}

template <class Work>
int guarded(MPI_Comm comm, Work work) {
  return guarded_with([comm](int code) { return raise(comm, code); }, std::move(work));
}

// A failed MPI call has already run its error handler; a failure before or after it has not.
inline int unless(int code, MPI_Comm comm) { return code == MPI_SUCCESS ? code : raise(comm, code); }

}  // namespace pl::mpi
