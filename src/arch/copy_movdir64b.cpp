// SPDX-License-Identifier: Apache-2.0
// Whole lines as direct stores. Compiled for MOVDIR64B and SSE2. Reads are those of another set. Path grade: hot.
//
// MOVDIR64B loads 64 bytes from any address and stores them to an aligned line as one write that the CPU does not
// split, and that may leave at once without waiting in a write-combining buffer. It is not combined with later stores
// to the same line and not ordered against other stores; a copy never stores to a line in both ways, so neither matters
// here. Two writes to one line from two calls need publish_to_device between them, as with every routine.
#include <immintrin.h>

#include "arch/copy_frame.hpp"
#include "arch/copy_routines.hpp"

namespace pl::arch {
namespace {

struct movdir64b_isa {
  static constexpr std::size_t kWidestPiece = 16;

  template <std::size_t Bytes>
  PL_ALWAYS_INLINE static void store_wide(std::uintptr_t device, std::uintptr_t source) {
    static_assert(Bytes == 16);
    _mm_store_si128(pointer<__m128i>(device), _mm_loadu_si128(pointer<const __m128i>(source)));
  }

  PL_ALWAYS_INLINE static void store_line(std::uintptr_t device, std::uintptr_t source) {
    _movdir64b(pointer<void>(device), pointer<const void>(source));
  }
};

}  // namespace

namespace movdir64b {

void write(void* device, const void* host, std::size_t bytes) { write_routine<movdir64b_isa>(device, host, bytes); }
void fill(void* device, std::uint64_t pattern8, std::size_t bytes) { fill_routine<movdir64b_isa>(device, pattern8, bytes); }

}  // namespace movdir64b
}  // namespace pl::arch
