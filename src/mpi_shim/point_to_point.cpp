// SPDX-License-Identifier: Apache-2.0
// MPI functions: sends and receives.
#include "point_to_point.hpp"

using namespace pl::mpi;

#define PL_FUNCTIONS "point_to_point.inc"
#include "both_counts.inc"
