// SPDX-License-Identifier: Apache-2.0
// Describes tensors by DLPack. Classes with C functions (__dlpack_c_exchange_api__, DLPack 1.3: PyTorch since 2.10) take
// nanoseconds; all others give a capsule.
#pragma once

#include <nanobind/ndarray.h>

#include <cstdint>

#include "tensor.hpp"

namespace pl::py {

// struct DLPackExchangeAPI of dlpack.h, version 1.
struct exchange_functions {
  struct {
    std::uint32_t major, minor;
  } version;
  const exchange_functions* previous;
  void* allocate;
  void* export_managed;
  void* import_managed;
  // The object's tensor, whose shape and strides belong to the object; not 0: a Python error is set. May be null.
  int (*describe)(PyObject* object, nb::dlpack::dltensor* out);
  // The library's current stream on this thread; not 0: a Python error is set.
  int (*current_stream)(int device_type, std::int32_t device, void** stream);
};

// The functions of a class. Null: it has none, or of an unknown version.
const exchange_functions* exchange_functions_of(PyTypeObject* kind);

// Describes `object` by its functions. False: use another interface, because the element type is unknown.
bool from_exchange(nb::handle object, const exchange_functions& library, tensor& out);

// Describes `object` by a capsule, which the tensor keeps.
tensor from_dlpack(nb::handle object);

}  // namespace pl::py
