// SPDX-License-Identifier: Apache-2.0
// One instruction per line, both ways. Compiled for AVX-512 F and BW. Path grade: hot.
//
// Host memory is not accessed with byte masks, although they would avoid a copy on the stack: if the masked-off part
// lies in an unmapped page, the instruction is correct but takes a microcode assist, 120 ns instead of 12 (Sapphire
// Rapids, a buffer that starts at a page). A partial line on the device side never leaves its page.
//
// Reads: 17 lines in one group, because 1 KiB at any alignment touches at most 17. A streaming load of a whole line
// cannot lose its buffer between two parts, as narrower loads can.
#include <immintrin.h>

#include "arch/copy_frame.hpp"
#include "arch/copy_routines.hpp"

namespace pl::arch {
namespace {

// Bytes [begin, end) of a line. Precondition: begin < end <= 64 (a shift by 64 would be undefined).
PL_ALWAYS_INLINE __mmask64 bytes_mask(std::size_t begin, std::size_t end) {
  return (~std::uint64_t{0} >> (kLine - (end - begin))) << begin;
}

struct avx512_isa {
  static constexpr std::size_t kWidestPiece = 32;
  static constexpr std::size_t kUnit = kLine;
  static constexpr std::size_t kGroup = 17;
  static constexpr std::size_t kBulkGroup = 16;
  struct unit {
    __m512i line;
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
    _mm512_stream_si512(pointer<__m512i>(device), _mm512_loadu_si512(pointer<const void>(source)));
  }

  // In GCC 12 the intrinsic takes a pointer to non-const memory.
  PL_ALWAYS_INLINE static unit load_unit(std::uintptr_t device) { return {_mm512_stream_load_si512(pointer<void>(device))}; }
  PL_ALWAYS_INLINE static void store_unit(std::uintptr_t host, const unit& value) {
    _mm512_storeu_si512(pointer<void>(host), value.line);
  }
};

// Stores partial lines by one masked store. The SDM does not specify how a masked store reaches uncached memory (it
// says so explicitly for VMASKMOV), so this is a candidate to be measured, not the default.
template <class Source>
PL_ALWAYS_INLINE void write_masked_frame(std::uintptr_t device, const Source& source, std::size_t bytes) {
  compiler_barrier();
  if (is_natural_word(device, bytes)) {
    store_natural_word(device, source.for_device(device), bytes);
    compiler_barrier();
    return;
  }
  const auto store_partial = [&source](std::uintptr_t line, std::size_t begin, std::size_t end) {
    alignas(kLine) unsigned char staged[kLine] = {};
    __builtin_memcpy(staged + begin, pointer<const void>(source.for_device(line + begin)), end - begin);
    _mm512_mask_storeu_epi8(pointer<void>(line), bytes_mask(begin, end), _mm512_load_si512(staged));
  };
  const std::size_t begin = device % kLine;
  if (begin != 0 && bytes != 0) {
    const std::size_t in_line = bytes < kLine - begin ? bytes : kLine - begin;
    store_partial(device - begin, begin, begin + in_line);
    device += in_line;
    bytes -= in_line;
  }
  for (; bytes >= kLine; bytes -= kLine, device += kLine) avx512_isa::store_line(device, source.for_device(device));
  if (bytes != 0) store_partial(device, 0, bytes);
  compiler_barrier();
}

}  // namespace

namespace avx512 {

void write(void* device, const void* host, std::size_t bytes) { write_routine<avx512_isa>(device, host, bytes); }
void read(void* host, const void* device, std::size_t bytes) { read_routine<avx512_isa>(host, device, bytes); }
void fill(void* device, std::uint64_t pattern8, std::size_t bytes) { fill_routine<avx512_isa>(device, pattern8, bytes); }

void write_masked(void* device, const void* host, std::size_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(device);
  write_masked_frame(address, host_source{reinterpret_cast<std::uintptr_t>(host) - address}, bytes);
}

void fill_masked(void* device, std::uint64_t pattern8, std::size_t bytes) {
  const pattern_line line(pattern8);
  write_masked_frame(reinterpret_cast<std::uintptr_t>(device), pattern_source{reinterpret_cast<std::uintptr_t>(line.words)},
                     bytes);
}

}  // namespace avx512
}  // namespace pl::arch
