// SPDX-License-Identifier: Apache-2.0
// Streaming loads of 16 bytes. Compiled for SSE4.1. Writes are those of SSE2. Path grade: hot.
//
// The four loads of a line are adjacent: the first starts the bus read, and the others are served from the same
// streaming-load buffer, if it still contains the line.
#include <smmintrin.h>

#include "arch/copy_frame.hpp"
#include "arch/copy_routines.hpp"

namespace pl::arch {
namespace {

struct sse41_isa {
  static constexpr std::size_t kUnit = kLine;
  static constexpr std::size_t kGroup = 4;  // 4 registers a line, 16 in all; the out-of-order window overlaps groups
  static constexpr std::size_t kBulkGroup = 4;
  struct unit {
    __m128i quarter[4];
  };

  // In GCC 12 the intrinsic takes a pointer to non-const memory.
  PL_ALWAYS_INLINE static __m128i load_quarter(std::uintptr_t device) {
    return _mm_stream_load_si128(pointer<__m128i>(device));
  }

  PL_ALWAYS_INLINE static unit load_unit(std::uintptr_t device) {
    return {{load_quarter(device), load_quarter(device + 16), load_quarter(device + 32), load_quarter(device + 48)}};
  }
  PL_ALWAYS_INLINE static void store_unit(std::uintptr_t host, const unit& value) {
    _mm_storeu_si128(pointer<__m128i>(host), value.quarter[0]);
    _mm_storeu_si128(pointer<__m128i>(host + 16), value.quarter[1]);
    _mm_storeu_si128(pointer<__m128i>(host + 32), value.quarter[2]);
    _mm_storeu_si128(pointer<__m128i>(host + 48), value.quarter[3]);
  }
};

}  // namespace

void sse41::read(void* host, const void* device, std::size_t bytes) { read_routine<sse41_isa>(host, device, bytes); }

}  // namespace pl::arch
