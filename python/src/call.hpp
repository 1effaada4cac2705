// SPDX-License-Identifier: Apache-2.0
// For C functions that Python calls without nanobind (type slots, copy): converts C++ exceptions to Python errors.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>

#include "raise.hpp"

namespace nb = nanobind;

namespace pl::py {

// Returns body(). If it throws, sets a Python error and returns `failed`.
template <class Body, class Result>
Result call_guarded(Body&& body, Result failed) noexcept {
  try {
    return body();
  } catch (nb::python_error& reason) { reason.restore(); } catch (const nb::builtin_exception& reason) {
    const auto kind = reason.type();
    PyErr_SetString(kind == nb::exception_type::type_error    ? PyExc_TypeError
                    : kind == nb::exception_type::index_error ? PyExc_IndexError
                    : kind == nb::exception_type::key_error   ? PyExc_KeyError
                                                              : PyExc_ValueError,
                    reason.what());
  } catch (const error& reason) { raise(reason); } catch (const std::exception& reason) {
    PyErr_SetString(PyExc_RuntimeError, reason.what());
  }
  return failed;
}

}  // namespace pl::py
