// SPDX-License-Identifier: Apache-2.0
// Converts a copy between two tensors of the same shape to transfers of rows for the copy planner.
#pragma once

#include <peerlane/copy.hpp>
#include <vector>

#include "tensor.hpp"

namespace pl::py {

// `size_bytes` of the tensor's memory from `address` on.
peerlane::buffer buffer_over(const tensor& view, std::uint64_t address, std::size_t size_bytes);

// Makes as few transfers as the strides allow. Dimensions that are contiguous with each other on both sides are merged, the
// innermost gap becomes the pitch of a transfer, and the other dimensions are enumerated. Throws if elements of `dst`
// overlap, or if it would take more than a million transfers. Precondition: equal shapes and element sizes, one side at
// least on a device.
std::vector<peerlane::transfer> transfers_between(const tensor& dst, const tensor& src);

}  // namespace pl::py
