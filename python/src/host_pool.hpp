// SPDX-License-Identifier: Apache-2.0
// peerlane.HostPool: host memory that is pinned in the background (peerlane/host_pool.h), with Python's buffer protocol.
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace pl::py {

void bind_host_pool(nb::module_& module);

}  // namespace pl::py
