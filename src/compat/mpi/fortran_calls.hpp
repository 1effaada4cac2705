// SPDX-License-Identifier: Apache-2.0
// Calls of Fortran programs. Open MPI's Fortran bindings convert their arguments and call the C library's PMPI_ functions,
// so a preloaded MPI_ function never sees them.
#pragma once

namespace pl::mpi {

// Lets the bindings that are loaded now call this library's MPI_ functions instead of the PMPI_ functions of the same name:
// changes the addresses in their procedure linkage tables. MPI_ functions that this library does not have stay MPI's.
void redirect_fortran_calls() noexcept;

}  // namespace pl::mpi
