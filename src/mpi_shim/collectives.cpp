// SPDX-License-Identifier: Apache-2.0
// MPI functions: collective operations.
#include "collectives.hpp"

using namespace pl::mpi;

#define PL_FUNCTIONS "collectives.inc"
#include "both_counts.inc"
