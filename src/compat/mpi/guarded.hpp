// SPDX-License-Identifier: Apache-2.0
// What every function that stands before an MPI function does around its own work.
#pragma once

#include <new>

#include "compat/mpi/request_table.hpp"

namespace pl::mpi {

// For calls with device memory: `work` returns an MPI error code, and C programs get no exception.
template <class Work>
int guarded(MPI_Comm comm, Work work) {
  requests().progress();
  try {
    return work();
  } catch (const std::bad_alloc&) { return raise(comm, MPI_ERR_NO_MEM); }
}

// A call of MPI that failed has run its error handler already; what we do before and after it has not.
inline int unless(int code, MPI_Comm comm) { return code == MPI_SUCCESS ? code : raise(comm, code); }

}  // namespace pl::mpi
