// SPDX-License-Identifier: Apache-2.0
// The public result type under the internal namespace.
#pragma once

#include <peerlane/result.hpp>

namespace pl {
using peerlane::failure;
using peerlane::result;
using peerlane::status;
}  // namespace pl
