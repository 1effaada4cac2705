// SPDX-License-Identifier: Apache-2.0
// PyTorch's tensors: by DLPack's C functions where the version has them (2.10), else by their methods. PyTorch is never
// imported.
#pragma once

#include "tensor.hpp"

namespace pl::py {

// Whether objects of that class are tensors.
bool is_torch_class(PyTypeObject* kind);

// `library`: of its class (dlpack.hpp), or null.
tensor from_torch(nb::handle object, const exchange_functions* library);

// The storage of a tensor, which keeps the memory even where the tensor gets another one (tensor.set_, module.to); null for
// objects that have none.
nb::object torch_storage(nb::handle object);

// The object that keeps the memory described by `view` alive, even if the tensor itself is released meanwhile.
nb::object keeper_of(nb::handle object, tensor& view);

// The stream that is current for PyTorch on this thread.
std::uint64_t torch_stream(int device);

}  // namespace pl::py
