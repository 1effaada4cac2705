// SPDX-License-Identifier: Apache-2.0
// Copies through a CPU mapping of GPU memory, and plain copies, by several CPU threads: a single thread is limited by
// its write-combining or line-fill buffers, not by the bus.
//
// Any alignment and size; the two ranges must not overlap. `width` counts threads, including the caller. The guarantees
// for the calling thread are those of the routines in copy_dispatch.hpp, whichever thread copied which part.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "arch/mmio.hpp"
#include "copy/worker_pool.hpp"

namespace pl::copy {

// As arch::copy_to: later stores of the caller come after the data.
void write_parallel(worker_pool& pool, unsigned width, arch::mapping_type type, void* device, const void* host,
                    std::size_t bytes);

// As arch::copy_from: sees the caller's earlier writes, and nothing older than the call.
void read_parallel(worker_pool& pool, unsigned width, arch::mapping_type type, void* host, const void* device,
                   std::size_t bytes);

// As arch::fill_to: the pattern is aligned to device addresses.
void fill_parallel(worker_pool& pool, unsigned width, arch::mapping_type type, void* device, std::uint64_t pattern8,
                   std::size_t bytes);

// As memcpy.
void copy_host_parallel(worker_pool& pool, unsigned width, void* dst, const void* src, std::size_t bytes);

}  // namespace pl::copy
