// SPDX-License-Identifier: Apache-2.0
// Ordinary memory that a device writes by DMA while the CPU reads it. Every aligned 8-byte word contains a sentinel
// until the device has written that word, so the data itself shows that it has arrived: no completion word, no flush
// and no order of the device's writes is needed. A word whose data equals the sentinel looks as if it had not arrived;
// the caller detects that by a completion that it trusts.
//
// A device writes aligned 8-byte words atomically (docs/results/dma). The routines copy what they have compared, and
// read it once.
//
// Path grade: hot. No lock, no system call.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pl::arch {

constexpr std::size_t kArrivalLine = 64;

// `lines` and `bytes` are multiples of kArrivalLine, here and below.
void put_sentinel(void* lines, std::size_t bytes, std::uint64_t sentinel) noexcept;

// Copies lines from the front to `target` as long as all words of each have arrived, and restores the sentinel in them.
// Returns the number of bytes copied.
std::size_t take_arrived(void* target, void* lines, std::size_t bytes, std::uint64_t sentinel) noexcept;

// Whether the words with bytes [begin, end) of one line have arrived. If so, copies those bytes to `target` and
// restores the sentinel in the whole line.
bool take_part_of_line(void* target, void* line, std::size_t begin, std::size_t end, std::uint64_t sentinel) noexcept;

// Evicts lines from this CPU's caches if it can, for lines that the device will write next. A device's write to a line
// in a core's cache, especially a modified one, takes 0.6 us longer (docs/results/dma).
void evict_lines(const void* lines, std::size_t bytes) noexcept;

}  // namespace pl::arch
