// SPDX-License-Identifier: Apache-2.0
// Ordinary memory that a device writes by DMA while the CPU looks at it. Every aligned 8-byte word of it holds a sentinel
// until the device has written that word, so the data itself tells that it is there: no completion word, no flush, no order
// of the device's writes is needed. A word whose data is the sentinel looks as if it had not arrived; the caller finds out
// by a completion that it trusts.
//
// A device writes aligned 8-byte words whole (docs/results/dma). The routines copy what they have compared, and read it
// once.
//
// Path grade: hot. No lock, no system call.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pl::arch {

constexpr std::size_t kArrivalLine = 64;

// `lines` and `bytes` are multiples of kArrivalLine, here and below.
void put_sentinel(void* lines, std::size_t bytes, std::uint64_t sentinel) noexcept;

// Copies lines from the front to `target` as long as all words of each have arrived, and puts the sentinel back into them.
// Returns the bytes copied.
std::size_t take_arrived(void* target, void* lines, std::size_t bytes, std::uint64_t sentinel) noexcept;

// Whether the words that hold bytes [begin, end) of one line have arrived. If so those bytes are copied to `target`, and the
// whole line holds the sentinel again.
bool take_part_of_line(void* target, void* line, std::size_t begin, std::size_t end, std::uint64_t sentinel) noexcept;

// Drops lines from this CPU's caches where it can. A device's write to a line that a core's cache has, above all with
// changes, takes 0.6 us longer (docs/results/dma): for lines that the device will write next.
void evict_lines(const void* lines, std::size_t bytes) noexcept;

}  // namespace pl::arch
