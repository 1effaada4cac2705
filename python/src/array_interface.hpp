// SPDX-License-Identifier: Apache-2.0
// __cuda_array_interface__ (CuPy, Numba, JAX) and NumPy's __array_interface__, which differ only in where the memory is.
#pragma once

#include "tensor.hpp"

namespace pl::py {

// The attribute, or null if it is missing or failed. A Python error may then be set.
nb::object cuda_array_interface(nb::handle object);
nb::object array_interface(nb::handle object);

// `may_be_jax`: the object's class has block_until_ready.
tensor from_interface(nb::handle object, const nb::object& interface, place location, bool may_be_jax);

}  // namespace pl::py
