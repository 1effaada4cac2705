// SPDX-License-Identifier: Apache-2.0
// Halos that kernels exchange by the device API (docs/device.md): after each step a kernel of four threads puts the
// edges into the neighbours' memory and waits for theirs. One launch per exchange; neither the CPU nor the
// multiprocessors move data.
#pragma once

#include <memory>

#include "tools/triggered/halo_ways.hpp"

namespace pl::async {

// Collective. tool_failure: no DMA channels here, by which alone a rank reaches another's memory.
std::unique_ptr<halo_method> make_device_halo(bench_rank& session, const block_place& place);

}  // namespace pl::async
