// SPDX-License-Identifier: Apache-2.0
// The data of a sample, computed alike by kernels and by the CPU.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define PL_PATTERN_BOTH __host__ __device__ __forceinline__
#else
#define PL_PATTERN_BOTH inline
#endif

namespace pl::bandwidth {

// The 8 bytes at offset 8 * index of a source: unlike those at every other index, and unlike those of every other seed but
// for chance, so that data from another place, another sample or another transfer is found. The finalizer of splitmix64.
PL_PATTERN_BOTH std::uint64_t pattern_word(std::uint64_t index, std::uint64_t seed) {
  std::uint64_t z = (index + 1) * 0x9E3779B97F4A7C15u ^ seed;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// One vector's part in the digest of what a thread read: every bit counts, and so does the place.
PL_PATTERN_BOTH std::uint64_t digest_word(std::uint64_t index, std::uint64_t low, std::uint64_t high) {
  return low * (4 * index + 1) + high * (4 * index + 3);
}

// What kernels that only write store at offset 8 * index: cheap enough to keep up with the memory.
PL_PATTERN_BOTH std::uint64_t sequence_word(std::uint64_t index, std::uint64_t first) {
  return first + index * 0x9E3779B97F4A7C15u;
}

// Differences from the pattern. Checking kernels leave one of these in memory of their own GPU.
struct check_result {
  std::uint64_t wrong_bytes = 0;
  std::uint64_t first_offset = ~std::uint64_t{0};
  std::uint64_t flipped_bits = 0;

  // `difference`: found XOR expected of the word at `offset`. Little-endian, as everything that runs this.
  PL_PATTERN_BOTH void add(std::uint64_t offset, std::uint64_t difference) {
    if (difference == 0) return;
    flipped_bits |= difference;
    for (unsigned i = 0; i < 8; ++i) {
      if (((difference >> (8 * i)) & 0xFF) == 0) continue;
      ++wrong_bytes;
      if (offset + i < first_offset) first_offset = offset + i;
    }
  }
};

}  // namespace pl::bandwidth
