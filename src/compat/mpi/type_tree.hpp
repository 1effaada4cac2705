// SPDX-License-Identifier: Apache-2.0
// Decomposes an MPI datatype: MPI tells how a type was made, level by level.
#pragma once

#include "compat/mpi/layout.hpp"

namespace pl::mpi {

// Whether nothing is known of how the type was made.
bool is_predefined(MPI_Datatype type);

// One element's pieces in the order of its type map. ENOTSUP as layout_of.
result<pieces> take_apart(MPI_Datatype type);

// The predefined type of which all of it consists, as accumulates want it. EINVAL: there is more than one; ENOTSUP as
// layout_of.
result<MPI_Datatype> element_type(MPI_Datatype type);

}  // namespace pl::mpi
