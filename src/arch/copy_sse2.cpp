// SPDX-License-Identifier: Apache-2.0
// The x86-64 baseline. Compiled for SSE2. Path grade: hot.
//
// There is no streaming load before SSE4.1: a plain 16-byte load from write-combining memory is one bus read of 16
// bytes, four per line. So only the 16-byte blocks with requested bytes are read, not whole lines.
#include <emmintrin.h>

#include "arch/copy_frame.hpp"
#include "arch/copy_routines.hpp"

namespace pl::arch {
namespace {

struct sse2_isa {
  static constexpr std::size_t kWidestPiece = 16;
  static constexpr std::size_t kUnit = 16;
  static constexpr std::size_t kGroup = 16;  // all vector registers
  static constexpr std::size_t kBulkGroup = 16;
  struct unit {
    __m128i block;
  };

  // A plain store: in WC memory it combines like a non-temporal one, and in ordinary memory it does not evict a line
  // that is only partly written.
  template <std::size_t Bytes>
  PL_ALWAYS_INLINE static void store_wide(std::uintptr_t device, std::uintptr_t source) {
    static_assert(Bytes == 16);
    _mm_store_si128(pointer<__m128i>(device), _mm_loadu_si128(pointer<const __m128i>(source)));
  }

  // Loads first: the four stores are then adjacent, so that the line is complete before the CPU might evict it.
  PL_ALWAYS_INLINE static void store_line(std::uintptr_t device, std::uintptr_t source) {
    const __m128i a = _mm_loadu_si128(pointer<const __m128i>(source));
    const __m128i b = _mm_loadu_si128(pointer<const __m128i>(source + 16));
    const __m128i c = _mm_loadu_si128(pointer<const __m128i>(source + 32));
    const __m128i d = _mm_loadu_si128(pointer<const __m128i>(source + 48));
    _mm_stream_si128(pointer<__m128i>(device), a);
    compiler_barrier();
    _mm_stream_si128(pointer<__m128i>(device + 16), b);
    compiler_barrier();
    _mm_stream_si128(pointer<__m128i>(device + 32), c);
    compiler_barrier();
    _mm_stream_si128(pointer<__m128i>(device + 48), d);
  }

  PL_ALWAYS_INLINE static unit load_unit(std::uintptr_t device) { return {_mm_load_si128(pointer<const __m128i>(device))}; }
  PL_ALWAYS_INLINE static void store_unit(std::uintptr_t host, const unit& value) {
    _mm_storeu_si128(pointer<__m128i>(host), value.block);
  }
};

}  // namespace

namespace sse2 {

void write(void* device, const void* host, std::size_t bytes) { write_routine<sse2_isa>(device, host, bytes); }
void read(void* host, const void* device, std::size_t bytes) { read_routine<sse2_isa>(host, device, bytes); }
void fill(void* device, std::uint64_t pattern8, std::size_t bytes) { fill_routine<sse2_isa>(device, pattern8, bytes); }

}  // namespace sse2
}  // namespace pl::arch
