// SPDX-License-Identifier: Apache-2.0
// peerlane._core: the compiled half of the Python package, on top of libpeerlane's C++ headers. The public functions and
// classes are in python/peerlane/, and use it.
#include <nanobind/nanobind.h>

#include "blocks.hpp"
#include "communicator.hpp"
#include "copies.hpp"
#include "gil.hpp"
#include "host_pool.hpp"
#include "loaded_module.hpp"
#include "mapping.hpp"
#include "operation.hpp"
#include "process.hpp"
#include "raise.hpp"
#include "triggered.hpp"

NB_MODULE(_core, module) {
  static pl::py::loaded_module loaded;
  if (loaded.refill(module)) return;
  nb::set_leak_warnings(false);  // views may still exist when the interpreter ends
  nb::register_exception_translator(&pl::py::translate_errors);
  module.doc() = "The compiled half of the package; use `peerlane`.";
  module.def("process_number", &pl::py::process_number, "The number of this process. It differs in every forked child.");
  pl::py::interpreter_end::expect();
  pl::py::bind_mapping(module);
  pl::py::bind_operations(module);
  pl::py::bind_copies(module);
  pl::py::bind_blocks(module);
  pl::py::bind_host_pool(module);
  pl::py::bind_communicator(module);
  pl::py::bind_triggered(module);
  loaded.keep(module);
}
