// SPDX-License-Identifier: Apache-2.0
// Messages, put and get between the tensors of a job's processes (peerlane/communicator.hpp).
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>
#include <peerlane/communicator.hpp>
#include <string>

#include "error.hpp"
#include "tensor.hpp"

namespace nb = nanobind;

namespace pl::py {

// A process's rank in a communicator. Threads: any; calls that can wait release the GIL.
class communicator {
 public:
  communicator(const std::string& rendezvous, int rank, int size, bool host_only, double open_timeout_s, bool elastic) {
    auto options = peerlane::communicator::options();
    options.rendezvous = rendezvous.empty() ? nullptr : rendezvous.c_str();
    options.rank = rank;
    options.size = size;
    options.host_only = host_only ? 1 : 0;
    options.elastic = elastic ? PEERLANE_YES : PEERLANE_AS_SET;
    options.open_timeout_ms = static_cast<std::int64_t>(std::ceil(std::max(1.0, open_timeout_s) * 1000));
    const nb::gil_scoped_release waiting;
    link_ = value_of(peerlane::communicator::open(&options));
  }
  ~communicator() { close(); }
  communicator(const communicator&) = delete;
  communicator& operator=(const communicator&) = delete;
  void close() {
    const nb::gil_scoped_release waiting;
    link_.reset();
  }
  const peerlane::communicator& link() const {
    if (link_.get() == nullptr) throw nb::value_error("the communicator is closed");
    return link_;
  }

 private:
  peerlane::communicator link_;
};

// A message's tensor. What was queued for it must be over before a CPU or another process touches it.
tensor settled(nb::handle object, bool is_written, nb::handle after);

void bind_communicator(nb::module_& module);

}  // namespace pl::py
