// SPDX-License-Identifier: Apache-2.0
// Long reads of mapped GPU memory without loads from the mapping and without CUDA: a DMA channel writes the data to
// pinned host memory, and the CPU copies it from there while more arrives (dma/arrival_buffer.hpp). By loads, 64 KiB
// take 67 us (H200).
//
// For pins of the rm backend. The guarantees are those of loads: a read sees what this thread stored through the
// mapping before, works during stream captures and in callbacks that must not call CUDA, and works on memory that was
// freed while pinned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "map/backend.hpp"

namespace pl::copy {

// Shorter reads are faster by loads.
constexpr std::size_t kMinChannelRead = 4u << 10;

// Reads `size_bytes` at `mapped`, which lies at `offset` of the pin. Returns false, and guarantees nothing, if that is
// not possible now (no channel, another backend, all buffers in use, a simulated GPU, PEERLANE_COPY_ENGINE): the caller
// then uses loads. The first few long reads of a process are refused, since opening a channel takes 6 ms.
//
// Thread-safe. The pin must exist during the call.
bool read_by_channel(pinned_memory& pin, std::uint64_t offset, const void* mapped, void* destination,
                     std::size_t size_bytes) noexcept;

}  // namespace pl::copy
