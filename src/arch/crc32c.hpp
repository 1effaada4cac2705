// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli), the checksum of stored values and of what travels between a store and its clients.
//
// Speed, from a core's cache: carry-less multiplication of 512 bits (VPCLMULQDQ) from 512 bytes up (about 70 GB/s a
// core on a Sapphire Rapids Xeon); else 3 streams of the CPU's crc32 instruction side by side (about 20); else a table.
// Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace pl::arch {

// The checksum of `bytes` at `data`, as a continuation of `before`: crc32c(b, crc32c(a)) is the checksum of a followed by b.
// The checksum of nothing is 0; that of "123456789" is 0xE3069283.
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t before = 0) noexcept;

// Copies like memcpy and gives the checksum of what was stored, as a continuation of `before`: what is summed is what is
// stored, even if another thread changes `source` meanwhile. One pass where crc32c() uses carry-less multiplication, else
// piece by piece through the cache. `past_cache`: without reading the destination's lines first and without keeping them,
// for what is larger than the cache (128 MiB twice as fast, what would have stayed in the cache half as fast); the stores
// are ordered before later ones by then.
std::uint32_t crc32c_copy(void* destination, const void* source, std::size_t bytes, std::uint32_t before = 0,
                          bool past_cache = false) noexcept;

// The checksum of two pieces from the pieces' own: first(0..n), second of `second_bytes`. About a microsecond.
std::uint32_t crc32c_combine(std::uint32_t first, std::uint32_t second, std::uint64_t second_bytes) noexcept;

// The checksum of data of which each page of 4096 bytes, the last one of `last_bytes`, was summed by itself, from 0 and
// without complement, as a GPU does. Two nanoseconds a page. No pages: 0.
inline constexpr std::size_t kCrcPageBytes = 4096;
std::uint32_t crc32c_join_pages(std::span<const std::uint32_t> pages, std::size_t last_bytes) noexcept;

// Fallbacks: without carry-less multiplication, and without the crc32 instruction. The tests compare all three.
std::uint32_t crc32c_streams(const void* data, std::size_t bytes, std::uint32_t before = 0) noexcept;
std::uint32_t crc32c_portable(const void* data, std::size_t bytes, std::uint32_t before = 0) noexcept;

}  // namespace pl::arch
