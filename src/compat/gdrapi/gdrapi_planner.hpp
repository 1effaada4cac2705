// SPDX-License-Identifier: Apache-2.0
// GDRCopy's copies of large sizes: reads by a DMA channel where there is one (copy/channel_reader.hpp), and all by the copy
// planner for who asks for it (PEERLANE_GDRAPI_PLANNER=1).
//
// The planner is not the default because of what gdr_copy_to_mapping promises: it needs no CUDA at all, works in any state
// of the calling thread's CUDA context, beside stream captures, in callbacks where CUDA calls are forbidden
// (cuLaunchHostFunc, cuStreamAddCallback), and on memory that was freed while it is pinned. The planner's ways for large
// sizes call CUDA.
#pragma once

#include <cstddef>

namespace pl {

struct region;

constexpr std::size_t kMinPlannedBytes = 4096;  // below, the planner has nothing better than the CPU either

// False: not wanted, or not possible now; nothing has been promised, the caller copies itself.
bool planned_write(const region* target, const void* mapped, const void* source, std::size_t size_bytes) noexcept;
bool planned_read(const region* target, void* destination, const void* mapped, std::size_t size_bytes) noexcept;

}  // namespace pl
