// SPDX-License-Identifier: Apache-2.0
// Blocks between paged tensors (peerlane/blocks.hpp).
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace pl::py {

void bind_blocks(nb::module_& module);

}  // namespace pl::py
