// SPDX-License-Identifier: Apache-2.0
// DLPack: by the functions of a class where it has them (__dlpack_c_exchange_api__, DLPack 1.3: PyTorch since 2.10), which
// costs nanoseconds, or by a capsule.
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

// Of a class; null where it has none of a version that we know.
const exchange_functions* exchange_functions_of(PyTypeObject* kind);

// By the functions; false where an ordinary way must be taken (a type of element that we do not know).
bool from_exchange(nb::handle object, const exchange_functions& library, tensor& out);

// By a capsule, which the tensor keeps.
tensor from_dlpack(nb::handle object);

}  // namespace pl::py
