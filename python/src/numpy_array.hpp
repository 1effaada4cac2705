// SPDX-License-Identifier: Apache-2.0
// Reads NumPy arrays directly from their struct (PyArrayObject_fields), which NumPy's ABI guarantees: it is the same
// from 1.7 to 2.x. This takes 10 ns, the buffer protocol 150. The first use compares the fields of an array with its
// attributes.
#pragma once

#include "tensor.hpp"

namespace pl::py {

// Whether the object is exactly a numpy.ndarray.
bool is_numpy_array(nb::handle object);

// Precondition: is_numpy_array. False: use the buffer protocol (the dtype is new, or the struct has another layout).
bool from_numpy_array(nb::handle object, tensor& out);

// Remembers what the buffer protocol said about this array's dtype, for the next array with the same dtype.
void remember_dtype(nb::handle array, const element_type& type);

}  // namespace pl::py
