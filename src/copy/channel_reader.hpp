// SPDX-License-Identifier: Apache-2.0
// Long reads of mapped GPU memory without loads from the mapping and without CUDA: a DMA channel brings the data to pinned
// host memory, and the CPU copies it on while more arrives (dma/arrival_buffer.hpp). 64 KiB by loads take 67 us (H200).
//
// For pins of the rm backend. What a read promises stays as with loads: it sees what this thread stored through the mapping
// before, it works beside stream captures and in callbacks where CUDA must not be called, and on memory that was freed while
// it is pinned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "map/backend.hpp"

namespace pl::copy {

// Shorter reads are quicker by loads.
constexpr std::size_t kMinChannelRead = 4u << 10;

// Reads `size_bytes` at `mapped`, which lies `offset` behind the first byte of the pin. False: not possible here or now (no
// channel, another backend, all buffers in use, a simulated GPU, PEERLANE_COPY_ENGINE), and nothing has been promised; the
// caller reads by loads. The first few long reads of a process are refused, since opening a channel takes 6 ms.
//
// Thread-safe. The pin must stay during the call.
bool read_by_channel(pinned_memory& pin, std::uint64_t offset, const void* mapped, void* destination,
                     std::size_t size_bytes) noexcept;

}  // namespace pl::copy
