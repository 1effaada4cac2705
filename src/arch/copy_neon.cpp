// SPDX-License-Identifier: Apache-2.0
// AArch64 for Normal non-cacheable (write-combining) mappings; not for Device memory. Path grade: hot.
//
// A line is four adjacent 16-byte stores, which the interconnect gathers. There is no streaming load: whether four loads
// of a line become one bus read depends on the CPU. Hence only the 16-byte blocks that hold requested bytes are read.
#include <arm_neon.h>

#include "arch/copy_frame.hpp"
#include "arch/copy_routines.hpp"

namespace pl::arch {
namespace {

struct neon_isa {
  static constexpr std::size_t kWidestPiece = 16;
  static constexpr std::size_t kUnit = 16;
  static constexpr std::size_t kGroup = 20;  // 320 bytes: of 32 registers, leaves some for the compiler
  static constexpr std::size_t kBulkGroup = 16;
  struct unit {
    uint8x16_t block;
  };

  template <std::size_t Bytes>
  PL_ALWAYS_INLINE static void store_wide(std::uintptr_t device, std::uintptr_t source) {
    static_assert(Bytes == 16);
    vst1q_u8(pointer<std::uint8_t>(device), vld1q_u8(pointer<const std::uint8_t>(source)));
  }

  PL_ALWAYS_INLINE static void store_line(std::uintptr_t device, std::uintptr_t source) {
    vst1q_u8_x4(pointer<std::uint8_t>(device), vld1q_u8_x4(pointer<const std::uint8_t>(source)));
  }

  PL_ALWAYS_INLINE static unit load_unit(std::uintptr_t device) { return {vld1q_u8(pointer<const std::uint8_t>(device))}; }
  PL_ALWAYS_INLINE static void store_unit(std::uintptr_t host, const unit& value) {
    vst1q_u8(pointer<std::uint8_t>(host), value.block);
  }
};

}  // namespace

namespace neon {

void write(void* device, const void* host, std::size_t bytes) { write_routine<neon_isa>(device, host, bytes); }
void read(void* host, const void* device, std::size_t bytes) { read_routine<neon_isa>(host, device, bytes); }
void fill(void* device, std::uint64_t pattern8, std::size_t bytes) { fill_routine<neon_isa>(device, pattern8, bytes); }

}  // namespace neon
}  // namespace pl::arch
