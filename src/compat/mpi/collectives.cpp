// SPDX-License-Identifier: Apache-2.0
// MPI functions: collective operations.
#include "compat/mpi/collectives.hpp"

using namespace pl::mpi;

#define PL_FUNCTIONS "collectives.inc"
#include "compat/mpi/both_counts.inc"

#if MPI_VERSION >= 4
#define PL_FUNCTIONS "persistent_collectives.inc"
#include "compat/mpi/both_counts.inc"
#endif
