// SPDX-License-Identifier: Apache-2.0
// CRC-32C of a value in place, by segments, which gpu_checksum.hpp joins on the CPU. "Slicing by eight": eight bytes a
// step by eight tables, which are kept in shared memory (Kounavis and Berry, A Systematic Approach to Building High
// Performance Software-based CRC Generators, 2005).
#include "copy/checksum_protocol.hpp"
#include "cuda/kernel_device.cuh"

namespace dev = pl::dev;
namespace checksum = pl::copy::checksum;

namespace {

PL_DEVICE std::uint32_t step8(const volatile std::uint32_t* table, std::uint32_t crc, std::uint64_t word) {
  word ^= crc;
  std::uint32_t out = 0;
  for (unsigned i = 0; i < 8; ++i) out ^= table[(7 - i) * 256 + static_cast<unsigned>(word >> (8 * i) & 0xff)];
  return out;
}

// Without complement, from 0. `position` is a multiple of 16.
PL_DEVICE std::uint32_t segment_crc(const volatile std::uint32_t* table, std::uint64_t position, std::uint64_t bytes) {
  std::uint32_t crc = 0;
  const std::uint64_t whole = position + bytes / 16 * 16;
  const std::uint64_t end = position + bytes;
#if defined(__CUDACC__)
#pragma unroll 4  // loads ahead of the table lookups
#endif
  for (; position < whole; position += 16) {
    const dev::vec16 both = dev::load_stream_vec16(reinterpret_cast<const void*>(position));
    crc = step8(table, crc, both.low);
    crc = step8(table, crc, both.high);
  }
  for (; position < end; ++position)
    crc = crc >> 8 ^ table[(crc ^ dev::load_relaxed(reinterpret_cast<const std::uint8_t*>(position))) & 0xff];
  return crc;
}

}  // namespace

// `src` is a multiple of 16. `control` is a checksum::control in pinned host memory, `tables` the eight tables.
PL_KERNEL void crc32c_segments(std::uint64_t src, std::uint64_t bytes, std::uint64_t tables, std::uint64_t control,
                               std::uint32_t job) {
  auto* const table = static_cast<volatile std::uint32_t*>(dev::shared_memory());
  volatile std::uint32_t& is_given_up = table[checksum::kTableWords];
  const unsigned me = dev::thread_x(), threads = dev::block_dim_x(), block = dev::block_x();
  auto* const started = reinterpret_cast<std::uint32_t*>(control + checksum::kStartedAt) + block;
  auto* const ended = reinterpret_cast<std::uint32_t*>(control + checksum::kEndedAt) + block;
  if (me == 0) {
    // The other half of gpu_checksum::job::give_up: either give_up sees that this block has started, or this block sees
    // that its memory must not be read any more. The load cannot overtake the store on the bus, and the fence keeps
    // their order before it.
    dev::store_relaxed(started, job);
    dev::fence_system();
    is_given_up = dev::load_relaxed(reinterpret_cast<const std::uint32_t*>(control + checksum::kGivenUpAt)) == job ? 1 : 0;
  }
  for (unsigned i = me; i < checksum::kTableWords; i += threads)
    table[i] = dev::load_relaxed(reinterpret_cast<const std::uint32_t*>(tables) + i);
  dev::sync_threads();
  if (is_given_up != 0) {
    if (me == 0) dev::store_release(ended, job);
    return;
  }
  auto* const out = reinterpret_cast<std::uint32_t*>(control + checksum::kSegmentsAt);
  const std::uint64_t segments = (bytes + checksum::kSegmentBytes - 1) / checksum::kSegmentBytes;
  for (std::uint64_t i = std::uint64_t{block} * threads + me; i < segments;
       i += std::uint64_t{dev::grid_dim_x()} * threads) {
    const std::uint64_t begin = i * checksum::kSegmentBytes, left = bytes - begin;
    dev::store_relaxed(out + i,
                       segment_crc(table, src + begin, left < checksum::kSegmentBytes ? left : checksum::kSegmentBytes));
  }
  dev::sync_threads();
  if (me == 0) dev::store_release(ended, job);
}
PL_EXPORT_KERNEL(crc32c_segments)
