// SPDX-License-Identifier: Apache-2.0
// What a Python object says of its memory: PyTorch tensors, __cuda_array_interface__ (CuPy, Numba, JAX), DLPack, the buffer
// protocol (NumPy, bytes), our own mappings, and (pointer, size). Nothing is copied, no stream is waited for. The GIL is
// needed.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "dimensions.hpp"
#include "numbers.hpp"
#include "scalar.hpp"

namespace nb = nanobind;

namespace pl::py {

enum class place : std::uint8_t { host, device };

struct exchange_functions;  // dlpack.hpp

struct tensor {
  std::uint64_t address = 0;  // of element [0, 0, ...]; with negative strides not the lowest byte
  place location = place::host;
  element_type type;
  dimensions shape;
  dimensions strides;  // bytes
  bool is_writable = true;
  bool is_torch = false;                        // has a current stream (stream_order.hpp)
  int device = -1;                              // where known
  std::uint64_t stream = 0;                     // named by __cuda_array_interface__ as the producer of the values; 0: none
  const exchange_functions* library = nullptr;  // knows its library's current stream
  nb::object owner;                             // keeps the memory
  nb::object block_until_ready;                 // of JAX's arrays; else null

  // Both throw ValueError for a shape with a negative dimension, or one beyond any memory.
  std::int64_t elements() const;
  std::uint64_t bytes() const;
  bool is_contiguous() const;  // in C order
};

// The range of addresses that contains all elements.
struct extent {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};
extent extent_of(const tensor& view);

// C order strides of that shape.
dimensions packed_strides(const dimensions& shape, std::int64_t element_bytes);

// Describes the memory of an object. TypeError: it has none of the known interfaces; the message begins with `role`
// ("copy: the source").
tensor describe(nb::handle object, const char* role);

// A tuple or list of signed_integer().
dimensions integers(nb::handle sequence, const char* role);

}  // namespace pl::py
