// SPDX-License-Identifier: Apache-2.0
// A compiled module that is imported again in one process: after its entry in sys.modules is gone (tests, notebooks), or by
// another interpreter. Its classes are registered once, so a second registration would leave the module without them.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <stdexcept>

namespace nb = nanobind;

namespace pl::py {

class loaded_module {
 public:
  // Fills `module` with what the first import made; false: this is the first. Throws what becomes an ImportError in another
  // interpreter than the first: the classes belong to that one, even after its end.
  bool refill(nb::module_& module) const {
    if (first_ == nullptr) return false;
    if (interpreter() != interpreter_)
      throw std::runtime_error(
          "peerlane is loaded in another interpreter of this process: use it in one interpreter only, or in processes of "
          "their own");
    if (PyDict_Merge(PyModule_GetDict(module.ptr()), first_, 0) != 0) throw nb::python_error();
    return true;
  }

  void keep(const nb::module_& module) {
    interpreter_ = interpreter();
    first_ = PyModule_GetDict(module.ptr());
    Py_INCREF(first_);  // for ever, as the classes
  }

 private:
  static std::int64_t interpreter() { return PyInterpreterState_GetID(PyInterpreterState_Get()); }

  PyObject* first_ = nullptr;
  std::int64_t interpreter_ = -1;
};

}  // namespace pl::py
