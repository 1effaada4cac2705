// SPDX-License-Identifier: Apache-2.0
// NumPy's arrays by the fields of their struct, which NumPy's binary interface promises to extensions (PyArrayObject_fields:
// unchanged from 1.7 to 2.x): 10 ns instead of 150 by the buffer protocol. Checked against NumPy's own words at the first
// use.
#pragma once

#include "tensor.hpp"

namespace pl::py {

// Whether the object is exactly a numpy.ndarray.
bool is_numpy_array(nb::handle object);

// Precondition: is_numpy_array. False: the buffer protocol must be asked (a dtype seen for the first time, another layout).
bool from_numpy_array(nb::handle object, tensor& out);

// What the buffer protocol has said of an array, for its dtype's next array.
void remember_dtype(nb::handle array, const element_type& type);

}  // namespace pl::py
