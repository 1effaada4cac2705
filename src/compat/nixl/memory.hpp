// SPDX-License-Identifier: Apache-2.0
// The plug-in's names of the memory that agents register and load, and of the channels that move it.
#pragma once

#include "copy/dma_memory.hpp"
#include "copy/gpu_queues.hpp"

namespace pl::nixl {

using memory = copy::dma_memory;
using copy::gpu_queues;
using copy::gpu_table;
using copy::shared_piece;
using path = copy::gpu_queues::path;

}  // namespace pl::nixl
