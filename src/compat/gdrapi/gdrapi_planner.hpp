// SPDX-License-Identifier: Apache-2.0
// GDRCopy's copies of large sizes: reads by a DMA channel if there is one (copy/channel_reader.hpp), and everything by
// the copy planner on request (PEERLANE_GDRAPI_PLANNER=1).
//
// The planner is not the default because of what gdr_copy_to_mapping guarantees: it needs no CUDA, and works in any
// state of the calling thread's CUDA context, during stream captures, in callbacks that must not call CUDA
// (cuLaunchHostFunc, cuStreamAddCallback), and on memory that was freed while pinned. The planner's methods for large
// sizes call CUDA.
#pragma once

#include <cstddef>

namespace pl {

struct region;

constexpr std::size_t kMinPlannedBytes = 4096;  // below it, the planner has nothing better than the CPU either

// Notes which allocation a new pin covers. If another allocation has that address later, the CPU copies. Not for a pin that
// another thread already knows.
void note_memory(region* fresh) noexcept;

// Returns false if it is not wanted or not possible now; the caller then copies itself.
bool planned_write(const region* target, const void* mapped, const void* source, std::size_t size_bytes) noexcept;
bool planned_read(const region* target, void* destination, const void* mapped, std::size_t size_bytes) noexcept;

}  // namespace pl
