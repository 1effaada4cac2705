// SPDX-License-Identifier: Apache-2.0
// Two tensors of one shape as the rows that the copy planner moves.
#pragma once

#include <peerlane/copy.hpp>
#include <vector>

#include "tensor.hpp"

namespace pl::py {

// `size_bytes` of the tensor's memory from `address` on.
peerlane::buffer buffer_over(const tensor& view, std::uint64_t address, std::size_t size_bytes);

// As few transfers as the strides allow: dimensions that continue each other on both sides are one, the last gap is a pitch,
// what is left is enumerated. Throws where elements of `dst` overlap, or more than a million transfers would be needed.
// Precondition: equal shapes and element sizes, one side at least on a device.
std::vector<peerlane::transfer> transfers_between(const tensor& dst, const tensor& src);

}  // namespace pl::py
