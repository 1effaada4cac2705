// SPDX-License-Identifier: Apache-2.0
// The simulated GPU's device files, which let rm::client work on the simulated GPU as on a real one.
#pragma once

#include "cuda/driver_table.hpp"
#include "os/device_io.hpp"

namespace pl::rm {

// The system calls of this process's simulated GPU, for rm::client::open and what is built on it. Null if the loaded
// libcuda is not the simulated one, or has another version. Valid as long as the process. Thread-safe.
device_io* simulated_device_io(const cu::driver_table& cuda);

}  // namespace pl::rm
