// SPDX-License-Identifier: Apache-2.0
// The bytes of one list of rows to the places of another: as few copies as the two layouts allow.
#pragma once

#include <vector>

#include "compat/mpi/pieces.hpp"
#include "copy/transfer.hpp"

namespace pl::mpi {

// The bytes of `source` in their order to those of `destination`; the shorter list decides how many. Offsets are addresses,
// no piece is empty.
std::vector<copy::transfer> pair_rows(const pieces& destination, const pieces& source, copy::direction way);

}  // namespace pl::mpi
