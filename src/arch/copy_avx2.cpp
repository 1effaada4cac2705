// SPDX-License-Identifier: Apache-2.0
// 32-byte non-temporal stores and streaming loads, two per line. Compiled for AVX2. Path grade: hot.
#include <immintrin.h>

#include "arch/copy_frame.hpp"
#include "arch/copy_routines.hpp"

namespace pl::arch {
namespace {

struct avx2_isa {
  static constexpr std::size_t kWidestPiece = 32;
  static constexpr std::size_t kUnit = kLine;
  static constexpr std::size_t kGroup = 8;  // 2 registers a line, 16 in all; the out-of-order window overlaps groups
  static constexpr std::size_t kBulkGroup = 8;
  struct unit {
    __m256i low, high;
  };

  // Plain stores, for the reason given in copy_sse2.cpp.
  template <std::size_t Bytes>
  PL_ALWAYS_INLINE static void store_wide(std::uintptr_t device, std::uintptr_t source) {
    if constexpr (Bytes == 16) {
      _mm_store_si128(pointer<__m128i>(device), _mm_loadu_si128(pointer<const __m128i>(source)));
    } else {
      static_assert(Bytes == 32);
      _mm256_store_si256(pointer<__m256i>(device), _mm256_loadu_si256(pointer<const __m256i>(source)));
    }
  }

  PL_ALWAYS_INLINE static void store_line(std::uintptr_t device, std::uintptr_t source) {
    const __m256i low = _mm256_loadu_si256(pointer<const __m256i>(source));
    const __m256i high = _mm256_loadu_si256(pointer<const __m256i>(source + 32));
    _mm256_stream_si256(pointer<__m256i>(device), low);
    compiler_barrier();
    _mm256_stream_si256(pointer<__m256i>(device + 32), high);
  }

  PL_ALWAYS_INLINE static unit load_unit(std::uintptr_t device) {
    return {_mm256_stream_load_si256(pointer<const __m256i>(device)),
            _mm256_stream_load_si256(pointer<const __m256i>(device + 32))};
  }
  PL_ALWAYS_INLINE static void store_unit(std::uintptr_t host, const unit& value) {
    _mm256_storeu_si256(pointer<__m256i>(host), value.low);
    _mm256_storeu_si256(pointer<__m256i>(host + 32), value.high);
  }
};

}  // namespace

namespace avx2 {

void write(void* device, const void* host, std::size_t bytes) { write_routine<avx2_isa>(device, host, bytes); }
void read(void* host, const void* device, std::size_t bytes) { read_routine<avx2_isa>(host, device, bytes); }
void fill(void* device, std::uint64_t pattern8, std::size_t bytes) { fill_routine<avx2_isa>(device, pattern8, bytes); }

}  // namespace avx2
}  // namespace pl::arch
