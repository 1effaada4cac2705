// SPDX-License-Identifier: Apache-2.0
// Converts Python integers to C++ integers, and objects to text for error messages.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

namespace nb = nanobind;

namespace pl::py {

// str(object). (nb::str(x) of an nb::object casts instead of converting.)
std::string text_of(nb::handle object);

// The qualified name of an object's type, such as "torch.Tensor", for error messages.
std::string class_name(nb::handle object);

// Whether it is one of Python's or NumPy's integers. Arrays of one element can become integers, too, but are none.
bool is_integer(nb::handle object);

// Converts a Python integer to that type. TypeError or ValueError with a message that begins with `role`.
std::int64_t signed_integer(nb::handle object, const char* role);
std::uint64_t unsigned_integer(nb::handle object, const char* role);

}  // namespace pl::py
