// SPDX-License-Identifier: Apache-2.0
// The program's own memory, as DMA channels reach it once it is pinned.
//
// Shared anonymous memory is seen through a second mapping, as a real engine sees pinned pages: it stays whatever the
// program unmaps, and every aligned 8-byte word of it is written whole and once. Other memory has no second mapping. It is
// reached through the kernel (process_vm_readv), so pages that the program has unmapped are a fault of the channel and not a
// crash of the program; but the kernel's copies may be interrupted within a word, so whoever looks at such memory while a
// channel writes it can see half of one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sim/channel_space.hpp"

namespace pl::sim {

// The caller has seen that the pages are mapped.
channel_memory_ref pin_host_memory(std::byte* bytes, std::uint64_t size_bytes);

}  // namespace pl::sim
