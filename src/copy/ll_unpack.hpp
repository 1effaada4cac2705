// SPDX-License-Identifier: Apache-2.0
// The receiving half of a low-latency protocol. Data carries its own arrival flags, so no flag has to be ordered after
// it, and polling and copying are one pass.
//
// A GPU writes lines into pinned host memory: units of 16 bytes {data0, flag, data1, flag}, each a 32-bit little-endian
// word; a unit carries 8 bytes of data. Only its 8-byte halves are atomic, and they may arrive in any order. The flag
// of each use of the lines differs from their previous content (zeroes, or the previous flag).
//
// Weakly ordered CPUs need no barrier either, since data and flag come with one load of 8 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace pl::copy {

constexpr std::size_t kLlBlockBytes = 64;  // data bytes by which progress is counted

// Size of the lines for `bytes` of data: half of each unit is flags.
constexpr std::size_t ll_line_bytes(std::size_t bytes) { return (bytes + 7) / 8 * 16; }

// Unpacks the data bytes [offset, bytes) of `lines` to `dst` as far as all flags match, and returns how far: a multiple
// of kLlBlockBytes or `bytes`, to be passed as `offset` of the next call. Everything below is in `dst`; nothing outside
// of [dst + offset, dst + the returned offset) was written. Reads no half unit without data below `bytes`. `offset`: a
// multiple of kLlBlockBytes, or `bytes`. `lines`: aligned to 16 bytes, best to 64. `dst`: any alignment. Never blocks;
// costs one load if the first block has not arrived.
std::size_t ll_unpack(void* dst, const void* lines, std::uint32_t flag, std::size_t offset, std::size_t bytes);

struct ll_unpack_variant {
  const char* name;
  std::size_t (*unpack)(void* dst, const void* lines, std::uint32_t flag, std::size_t offset, std::size_t bytes);
};
// The variants that this CPU can run, slowest first; ll_unpack is the last one that PEERLANE_COPY_ISA allows. For tests
// and benchmarks.
std::span<const ll_unpack_variant> supported_ll_unpacks();

}  // namespace pl::copy
