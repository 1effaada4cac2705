// SPDX-License-Identifier: Apache-2.0
// Translates failures to Python exceptions: ETIMEDOUT to peerlane.Timeout, all others to peerlane.Error or a subclass. All
// are OSErrors with the errno value.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>
#include <string_view>

#include "error.hpp"

namespace nb = nanobind;

namespace pl::py {

// A message as Python's text. It may repeat a name of a file that is not UTF-8.
inline nb::object text_of_message(std::string_view message) {
  PyObject* const text = PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "backslashreplace");
  if (text == nullptr) throw nb::python_error();
  return nb::steal(text);
}

// Sets the Python error: peerlane.Error or the matching subclass.
inline void raise(const error& reason) {
  const char* const name = dynamic_cast<const stale_mapping*>(&reason) != nullptr ? "StaleMapping"
                           : reason.code() == ETIMEDOUT                           ? "Timeout"
                                                                                  : "Error";
  try {
    const nb::object kind = nb::module_::import_("peerlane._errors").attr(name);
    const nb::object arguments = nb::make_tuple(reason.code(), text_of_message(reason.what()));
    PyErr_SetObject(kind.ptr(), arguments.ptr());
  } catch (nb::python_error& other) { other.restore(); }
}

// For nb::register_exception_translator().
inline void translate_errors(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const error& reason) { raise(reason); }
}

}  // namespace pl::py
