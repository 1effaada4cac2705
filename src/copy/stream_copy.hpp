// SPDX-License-Identifier: Apache-2.0
// One copy in a CUDA stream, by CUDA's own calls.
#pragma once

#include <string>

#include "copy/transfer.hpp"
#include "cuda/driver_table.hpp"

namespace pl::copy {

// Linear copies and rows of any pitch. In a stream that is being captured it becomes a node of the graph.
cu::result_t queue_copy(const cu::driver_table& cuda, const transfer& copy, cu::stream_t stream);

std::string describe(const transfer& copy);

}  // namespace pl::copy
