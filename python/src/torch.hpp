// SPDX-License-Identifier: Apache-2.0
// Describes tensors of PyTorch: by DLPack's C functions since version 2.10, and by their methods before. Never imports
// PyTorch.
#pragma once

#include "tensor.hpp"

namespace pl::py {

// Whether objects of that class are tensors.
bool is_torch_class(PyTypeObject* kind);

// `library`: of its class (dlpack.hpp), or null.
tensor from_torch(nb::handle object, const exchange_functions* library);

// The storage of a tensor. It keeps the memory alive even if the tensor gets another storage (tensor.set_, module.to). Null:
// the object has none.
nb::object torch_storage(nb::handle object);

// The object that keeps the memory described by `view` alive, even if the tensor itself is released meanwhile.
nb::object keep_alive_of(nb::handle object, tensor& view);

// The stream that is current for PyTorch on this thread.
std::uint64_t torch_stream(int device);

}  // namespace pl::py
