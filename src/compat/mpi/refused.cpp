// SPDX-License-Identifier: Apache-2.0
// MPI functions that refuse device memory: one-sided communication, and reads and writes of files in two calls.
#include "compat/mpi/refused.hpp"

namespace pl::mpi {

void tell_refused(const char* name) noexcept {
  complain(name, {ENOTSUP, "device memory is not supported here: docs/mpi-shim.md lists what is"});
}

}  // namespace pl::mpi

using namespace pl::mpi;

int MPI_Win_attach(MPI_Win window, void* base, MPI_Aint size) {
  return window_of_host<PMPI_Win_attach>("MPI_Win_attach", window, {base}, window, base, size);
}

int MPI_Fetch_and_op(const void* origin, void* result, MPI_Datatype type, int target, MPI_Aint offset, MPI_Op op,
                     MPI_Win window) {
  return window_of_host<PMPI_Fetch_and_op>("MPI_Fetch_and_op", window, {origin, result}, origin, result, type, target,
                                           offset, op, window);
}

int MPI_Compare_and_swap(const void* origin, const void* compare, void* result, MPI_Datatype type, int target,
                         MPI_Aint offset, MPI_Win window) {
  return window_of_host<PMPI_Compare_and_swap>("MPI_Compare_and_swap", window, {origin, compare, result}, origin, compare,
                                               result, type, target, offset, window);
}

#define PL_FUNCTIONS "refused.inc"
#include "compat/mpi/both_counts.inc"
