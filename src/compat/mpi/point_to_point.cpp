// SPDX-License-Identifier: Apache-2.0
// MPI functions: sends and receives.
#include "compat/mpi/point_to_point.hpp"

using namespace pl::mpi;

#define PL_FUNCTIONS "point_to_point.inc"
#include "compat/mpi/both_counts.inc"

#if MPI_VERSION >= 4
#define PL_FUNCTIONS "point_to_point_mpi4.inc"
#include "compat/mpi/both_counts.inc"
#endif
