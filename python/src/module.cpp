// SPDX-License-Identifier: Apache-2.0
// peerlane._core: the compiled half of the Python package, over libpeerlane's C++ headers. What users call is made of it in
// python/peerlane/.
#include <nanobind/nanobind.h>

#include "blocks.hpp"
#include "call.hpp"
#include "copies.hpp"
#include "error.hpp"
#include "host_pool.hpp"
#include "mapping.hpp"
#include "messages.hpp"
#include "operation.hpp"
#include "process.hpp"
#include "streams.hpp"

namespace pl::py {

// ETIMEDOUT becomes peerlane.Timeout, everything else peerlane.Error; all are OSErrors and carry the errno value.
void raise(const error& reason) {
  const char* const name = dynamic_cast<const stale_mapping*>(&reason) != nullptr ? "StaleMapping"
                           : reason.code() == ETIMEDOUT                           ? "Timeout"
                                                                                  : "Error";
  try {
    const nb::object kind = nb::module_::import_("peerlane._errors").attr(name);
    const nb::object arguments = nb::make_tuple(reason.code(), reason.what());
    PyErr_SetObject(kind.ptr(), arguments.ptr());
  } catch (nb::python_error& other) { other.restore(); }
}

}  // namespace pl::py

namespace {

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const pl::py::error& reason) { pl::py::raise(reason); }
}

}  // namespace

NB_MODULE(_core, module) {
  nb::set_leak_warnings(false);  // views may outlive the interpreter's end
  nb::register_exception_translator(translate);
  module.doc() = "The compiled half of the package; use `peerlane`.";
  module.def("process_number", &pl::py::process_number, "Another number in every forked child.");
  pl::py::bind_mapping(module);
  pl::py::bind_operations(module);
  pl::py::bind_copies(module);
  pl::py::bind_blocks(module);
  pl::py::bind_host_pool(module);
  pl::py::bind_messages(module);
  pl::py::bind_streams(module);
}
