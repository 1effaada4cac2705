// SPDX-License-Identifier: Apache-2.0
// peerlane._core: the compiled half of the Python package, over libpeerlane's C++ headers. What users call is made of it in
// python/peerlane/.
#include <nanobind/nanobind.h>

#include "copies.hpp"
#include "error.hpp"
#include "mapping.hpp"
#include "messages.hpp"
#include "streams.hpp"

namespace {

// ETIMEDOUT becomes peerlane.Timeout, everything else peerlane.Error; both are OSErrors and carry the errno value.
void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const pl::py::error& why) {
    const nb::object kinds = nb::module_::import_("peerlane._errors");
    const nb::object kind = kinds.attr(why.code() == ETIMEDOUT ? "Timeout" : "Error");
    const nb::object arguments = nb::make_tuple(why.code(), why.what());
    PyErr_SetObject(kind.ptr(), arguments.ptr());
  }
}

}  // namespace

NB_MODULE(_core, module) {
  nb::set_leak_warnings(false);  // views may outlive the interpreter's end
  nb::register_exception_translator(translate);
  module.doc() = "The compiled half of the package; use `peerlane`.";
  pl::py::bind_mapping(module);
  pl::py::bind_copies(module);
  pl::py::bind_messages(module);
  pl::py::bind_streams(module);
}
