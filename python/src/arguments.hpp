// SPDX-License-Identifier: Apache-2.0
// Arguments that are numbers or bytes, checked here for clear error messages: nanobind accepts any object, and the call
// converts it.
#pragma once

#include <nanobind/nanobind.h>

#include <concepts>
#include <limits>
#include <string>

#include "numbers.hpp"

namespace pl::py {

// Any object, unchecked until it is converted.
struct unchecked_argument {
  nb::handle given;
};

struct integer_argument : unchecked_argument {
  static constexpr auto kPythonName = nb::detail::const_name("int");
  // TypeError or ValueError that begins with `role`.
  template <class T>
  T as(const char* role) const {
    if constexpr (std::numeric_limits<T>::is_signed) {
      const std::int64_t number = signed_integer(given, role);
      if (number == static_cast<T>(number)) return static_cast<T>(number);
    } else {
      const std::uint64_t number = unsigned_integer(given, role);
      if (number == static_cast<T>(number)) return static_cast<T>(number);
    }
    throw nb::value_error((std::string(role) + ": " + text_of(given) + " is out of range").c_str());
  }
};

struct bytes_argument : unchecked_argument {
  static constexpr auto kPythonName = nb::detail::const_name("bytes");
  nb::bytes as(const char* role) const {
    if (!PyBytes_Check(given.ptr()))
      throw nb::type_error((std::string(role) + ": expected bytes, got " + class_name(given)).c_str());
    return nb::borrow<nb::bytes>(given);
  }
};

}  // namespace pl::py

namespace nanobind::detail {

template <std::derived_from<pl::py::unchecked_argument> Argument>
struct type_caster<Argument> {
  NB_TYPE_CASTER(Argument, Argument::kPythonName)
  template <class Flags>  // another type in each version of nanobind
  bool from_python(handle source, Flags, cleanup_list*) noexcept {
    value.given = source;
    return true;
  }
  static handle from_cpp(const Argument& source, rv_policy, cleanup_list*) noexcept { return source.given.inc_ref(); }
};

}  // namespace nanobind::detail
