// SPDX-License-Identifier: Apache-2.0
// The table of libcuda's functions, for code that calls the driver directly.
#pragma once

#include "cuda/driver_table.hpp"
#include "error.hpp"

namespace pl::py {

// Throws if there is no driver. Valid until the process ends.
inline const cu::driver_table* open_driver() {
  const auto cuda = cu::driver();
  if (!cuda) throw error(cuda.error());
  return *cuda;
}

}  // namespace pl::py
