// SPDX-License-Identifier: Apache-2.0
// Puts, signals and waits that CUDA streams execute without a CPU (peerlane/triggered.hpp).
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace pl::py {

void bind_triggered(nb::module_& module);

}  // namespace pl::py
