// SPDX-License-Identifier: Apache-2.0
// Contiguous tensors as ranges of bytes, for messages and streams.
#pragma once

#include <chrono>
#include <cmath>
#include <peerlane/communicator.hpp>

#include "error.hpp"
#include "tensor.hpp"

namespace pl::py {

inline void must_be_one_run(const tensor& view, bool is_written) {
  if (!view.is_contiguous())
    throw nb::value_error("the tensor has gaps: give a contiguous one, or send its rows one by one");
  if (is_written && !view.is_writable) throw nb::value_error("the tensor is read-only and would be written");
}

inline peerlane::buffer memory_of(const tensor& view) {
  const auto size_bytes = static_cast<std::size_t>(view.bytes());
  if (view.location == place::device) return peerlane::device_buffer(view.address, size_bytes);
  return peerlane::host_buffer(reinterpret_cast<void*>(static_cast<std::uintptr_t>(view.address)), size_bytes);
}

// A time limit in seconds. None: no limit.
inline std::chrono::milliseconds limit_of(nb::handle seconds) {
  if (seconds.is_none()) return peerlane::no_limit;
  const double given = PyFloat_AsDouble(seconds.ptr());
  if (given == -1.0 && PyErr_Occurred() != nullptr) throw nb::python_error();
  if (!(given >= 0)) throw nb::value_error("the timeout is seconds, 0 or more, or None");
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(std::min(given, 1e9) * 1e3)));
}

}  // namespace pl::py
