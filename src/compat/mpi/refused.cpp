// SPDX-License-Identifier: Apache-2.0
// MPI functions that refuse device memory: memory attached to windows, and reads and writes of files in two calls.
#include "compat/mpi/refused.hpp"

namespace pl::mpi {

void tell_refused(const char* name) noexcept {
  complain(name,
           {ENOTSUP, "this call does not accept device memory (docs/mpi-shim.md#how-it-works lists the calls that do)"});
}

}  // namespace pl::mpi

using namespace pl::mpi;

int MPI_Win_attach(MPI_Win window, void* base, MPI_Aint size) {
  return window_of_host<PMPI_Win_attach>("MPI_Win_attach", window, {base}, window, base, size);
}

#define PL_FUNCTIONS "refused.inc"
#include "compat/mpi/both_counts.inc"
