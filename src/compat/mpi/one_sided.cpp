// SPDX-License-Identifier: Apache-2.0
// MPI functions that read and write the windows of other ranks.
#include "compat/mpi/one_sided.hpp"

using namespace pl::mpi;

int MPI_Fetch_and_op(const void* origin, void* result, MPI_Datatype type, int target, MPI_Aint offset, MPI_Op op,
                     MPI_Win window) {
  return get_accumulate({origin, 1, type}, {result, 1, type}, {target, offset, 1, type}, op, window,
                        [&](const void* source, void* previous) {
                          return PMPI_Fetch_and_op(source, previous, type, target, offset, op, window);
                        });
}

int MPI_Compare_and_swap(const void* origin, const void* compare, void* result, MPI_Datatype type, int target,
                         MPI_Aint offset, MPI_Win window) {
  const auto known = windows().find(window);
  const target_place place{target, offset, 1, type};
  if (known != nullptr && is_direct(*known, place))
    return guarded_window(
        window, [&] { return raise_on(window, compare_and_swap_directly(*known, origin, compare, result, place)); });
  if (target == MPI_PROC_NULL || (!on_device(origin) && !on_device(compare) && !on_device(result))) [[likely]]
    return PMPI_Compare_and_swap(origin, compare, result, type, target, offset, window);
  return guarded_window(window, [&] {
    auto made = std::make_shared<staged_operation>(window, target);
    int code = attach_source(made->origin, origin, 1, type);
    if (code == MPI_SUCCESS) code = attach_source(made->compare, compare, 1, type);
    if (code == MPI_SUCCESS) code = attach_source(made->result, result, 1, type);
    if (code != MPI_SUCCESS) return raise_on(window, code);
    code = PMPI_Compare_and_swap(made->origin.pointer(), made->compare.pointer(), made->result.pointer(), type, target,
                                 offset, window);
    if (code == MPI_SUCCESS) keep(window, std::move(made));
    return code;
  });
}

#define PL_FUNCTIONS "one_sided.inc"
#include "compat/mpi/both_counts.inc"
