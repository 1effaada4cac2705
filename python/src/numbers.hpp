// SPDX-License-Identifier: Apache-2.0
// Python's integers as numbers, and objects as words for messages.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

namespace nb = nanobind;

namespace pl::py {

// str(object). (nb::str(x) of an nb::object casts instead of converting.)
std::string text_of(nb::handle object);

// "torch.Tensor" of an object, for messages.
std::string class_name(nb::handle object);

// A Python integer as the number of that type; TypeError or ValueError that begins with `role`.
std::int64_t signed_integer(nb::handle object, const char* role);
std::uint64_t unsigned_integer(nb::handle object, const char* role);

}  // namespace pl::py
