// SPDX-License-Identifier: Apache-2.0
// Host memory for copies that is pinned in the background (peerlane/host_pool.h), as a buffer of Python.
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace pl::py {

void bind_host_pool(nb::module_& module);

}  // namespace pl::py
