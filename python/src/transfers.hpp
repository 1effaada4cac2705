// SPDX-License-Identifier: Apache-2.0
// Two tensors of one shape as the rows that the copy planner moves.
#pragma once

#include <peerlane/copy.h>

#include <vector>

#include "tensor.hpp"

namespace pl::py {

// One of PEERLANE_TO_DEVICE, _TO_HOST, _ON_DEVICE.
std::uint32_t direction_between(const tensor& dst, const tensor& src);

// As few transfers as the strides allow: dimensions that continue each other on both sides are one, the last gap is a pitch,
// what is left is enumerated. Throws where elements of `dst` overlap, or more than a million transfers would be needed.
// Precondition: equal shapes and element sizes, one side at least on a device.
std::vector<peerlane_transfer> transfers_between(const tensor& dst, const tensor& src);

}  // namespace pl::py
