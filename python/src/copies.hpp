// SPDX-License-Identifier: Apache-2.0
// Copies and fills through the planner. One copier for the process, opened at its first use and left open at exit.
#pragma once

#include <nanobind/nanobind.h>

#include <peerlane/copy.hpp>

namespace nb = nanobind;

namespace pl::py {

// Throws if it cannot be opened.
const peerlane::copier& shared_copier();

void bind_copies(nb::module_& module);

}  // namespace pl::py
