// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli), the checksum of stored values and of what travels between a store and its clients.
//
// Speed, from a core's cache: from 512 bytes up, carry-less multiplication of 512 bits (VPCLMULQDQ; about 70 GB/s a
// core on a Sapphire Rapids Xeon); otherwise 3 interleaved streams of the CPU's crc32 instruction (about 20); otherwise
// a table. Pure functions; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace pl::arch {

// The checksum of `bytes` at `data`, continuing `before`: crc32c(b, crc32c(a)) is the checksum of a followed by b. The
// checksum of nothing is 0; that of "123456789" is 0xE3069283.
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t before = 0) noexcept;

// Copies like memcpy and returns the checksum of what was stored, continuing `before`: the summed bytes are the stored
// bytes, even if another thread changes `source` meanwhile. One pass if crc32c() uses carry-less multiplication,
// otherwise piece by piece through the cache. `non_temporal`: neither reads the destination's lines first nor keeps them,
// for data larger than the cache (128 MiB twice as fast; data that would have stayed in the cache half as fast). On
// return these stores are ordered before later ones.
std::uint32_t crc32c_copy(void* destination, const void* source, std::size_t bytes, std::uint32_t before = 0,
                          bool non_temporal = false) noexcept;

// The checksum of two pieces from their own checksums: first(0..n), second of `second_bytes`. About a microsecond.
std::uint32_t crc32c_combine(std::uint32_t first, std::uint32_t second, std::uint64_t second_bytes) noexcept;

// The checksum of data whose pages of 4096 bytes (the last one of `last_bytes`) were each summed separately, from 0 and
// without complement, as a GPU does. Two nanoseconds a page. No pages: 0.
inline constexpr std::size_t kCrcPageBytes = 4096;
std::uint32_t crc32c_join_pages(std::span<const std::uint32_t> pages, std::size_t last_bytes) noexcept;

// Fallbacks: without carry-less multiplication, and without the crc32 instruction. The tests compare all three.
std::uint32_t crc32c_streams(const void* data, std::size_t bytes, std::uint32_t before = 0) noexcept;
std::uint32_t crc32c_portable(const void* data, std::size_t bytes, std::uint32_t before = 0) noexcept;

}  // namespace pl::arch
