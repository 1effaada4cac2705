// SPDX-License-Identifier: Apache-2.0
// The byte layout of an MPI datatype. Only its bytes are copied, because the gaps may belong to other messages or to a
// running kernel.
#pragma once

#include <cstddef>
#include <memory>

#include "base/status.hpp"
#include "compat/mpi/abi.hpp"
#include "compat/mpi/pieces.hpp"

namespace pl::mpi {

// Repeats the rows `n` times, each copy `step` bytes after the previous one.
pieces repeat(pieces rows, std::size_t n, std::ptrdiff_t step);

struct layout {
  std::ptrdiff_t extent = 0;
  std::ptrdiff_t first = 0;                 // offset of the first byte
  std::size_t bytes = 0;                    // of data
  std::shared_ptr<const pieces> scattered;  // null: one row of `bytes` from `first`
  // The rows of `count` elements.
  pieces rows_of(std::size_t count) const;
};

// ENOTSUP for types that were made in a way that is not known here. Derived types are decomposed once and cached with the
// type.
result<layout> layout_of(MPI_Datatype type);

// A type of bytes with the layout of `type`, which owns it; `type` itself if it has no gaps or cannot be decomposed.
// MPICH refuses to receive a part of an element into a type with gaps, and a header may end within one.
MPI_Datatype byte_twin(MPI_Datatype type);

}  // namespace pl::mpi
