// SPDX-License-Identifier: Apache-2.0
// The tables of `peerlane info`, which `peerlane demo` shows too.
#pragma once

#include "measure/result_file.hpp"
#include "tools/common/gpu.hpp"

namespace pl::tools {

// GPUs, driver, CPUs, mapping backends: prints them and adds rows to `results`.
void print_machine(const gpu_session& gpu, result_file& results);

}  // namespace pl::tools
