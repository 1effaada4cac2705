// SPDX-License-Identifier: Apache-2.0
// libcuda's functions, for those who ask it themselves.
#pragma once

#include "cuda/driver_table.hpp"
#include "error.hpp"

namespace pl::py {

// Throws where there is no driver. Lives as long as the process.
inline const cu::driver_table* open_driver() {
  const auto cuda = cu::driver();
  if (!cuda) throw error(cuda.error());
  return *cuda;
}

}  // namespace pl::py
