// SPDX-License-Identifier: Apache-2.0
// One-sided operations on direct targets (windows.hpp). All arguments are checked before a byte moves, and an operation
// is complete when its call returns. Every int is an MPI error code, for which no error handler has run.
#pragma once

#include "compat/mpi/windows.hpp"

namespace pl::mpi {

// A buffer argument at the origin.
struct origin_buffer {
  const void* pointer = nullptr;
  MPI_Count count = 0;
  MPI_Datatype type;
};

struct target_place {
  int rank = -1;
  MPI_Aint offset = 0;  // in displacement units
  MPI_Count count = 0;
  MPI_Datatype type;
};

// Whether an operation is one of these: its target is direct, or has attached some of these bytes of device memory.
bool is_direct(const window& window, const target_place& place);

int put_directly(window& window, const origin_buffer& source, const target_place& place);
int get_directly(window& window, const origin_buffer& destination, const target_place& place);
// `result`, if not null, receives the previous content. Atomic for each element with respect to other accumulates.
int accumulate_directly(window& window, const origin_buffer& source, const origin_buffer* result, const target_place& place,
                        MPI_Op op);
int compare_and_swap_directly(window& window, const void* source, const void* compare, void* result,
                              const target_place& place);

}  // namespace pl::mpi
