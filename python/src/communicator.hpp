// SPDX-License-Identifier: Apache-2.0
// Messages, put and get between the tensors of a job's processes (peerlane/communicator.hpp).
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace pl::py {

void bind_communicator(nb::module_& module);

}  // namespace pl::py
