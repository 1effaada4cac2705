// SPDX-License-Identifier: Apache-2.0
#include "numbers.hpp"

namespace pl::py {

std::string text_of(nb::handle object) { return nb::cast<std::string>(nb::str(object)); }

std::string class_name(nb::handle object) {
  const nb::handle type = object.type();
  const std::string module = nb::cast<std::string>(type.attr("__module__"));
  return (module == "builtins" ? "" : module + ".") + nb::cast<std::string>(type.attr("__qualname__"));
}

bool is_integer(nb::handle object) {
  return PyLong_Check(object.ptr()) || (PyIndex_Check(object.ptr()) && !PySequence_Check(object.ptr()));
}

std::int64_t signed_integer(nb::handle object, const char* role) {
  const long long number = PyLong_AsLongLong(object.ptr());
  if (number != -1 || PyErr_Occurred() == nullptr) return number;
  PyErr_Clear();
  const std::string subject = std::string(role) + ": ";
  if (!is_integer(object)) throw nb::type_error((subject + "expected an integer, got " + class_name(object)).c_str());
  throw nb::value_error((subject + text_of(object) + " is beyond 64 bits").c_str());
}

std::uint64_t unsigned_integer(nb::handle object, const char* role) {
  if (PyLong_Check(object.ptr())) {
    const unsigned long long number = PyLong_AsUnsignedLongLong(object.ptr());
    if (number != ~0ull || PyErr_Occurred() == nullptr) return number;
    PyErr_Clear();
    throw nb::value_error((std::string(role) + ": " + text_of(object) + " is negative or beyond 64 bits").c_str());
  }
  const nb::object index = nb::steal(PyNumber_Index(object.ptr()));  // also accepts NumPy's integers
  if (index.is_valid()) return unsigned_integer(index, role);
  PyErr_Clear();
  throw nb::type_error((std::string(role) + ": expected an integer, got " + class_name(object)).c_str());
}

}  // namespace pl::py
