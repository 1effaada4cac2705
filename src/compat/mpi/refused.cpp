// SPDX-License-Identifier: Apache-2.0
// MPI functions that refuse device memory: reads and writes of files in two calls.
#include "compat/mpi/refused.hpp"

namespace pl::mpi {

void tell_refused(const char* name) noexcept {
  complain(name,
           {ENOTSUP, "this call does not accept device memory (docs/mpi-shim.md#how-it-works lists the calls that do)"});
}

}  // namespace pl::mpi

using namespace pl::mpi;

#define PL_FUNCTIONS "refused.inc"
#include "compat/mpi/both_counts.inc"
