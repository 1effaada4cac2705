// SPDX-License-Identifier: Apache-2.0
// What collectives reduce: types of elements, operations, and their combination on the CPU.
//
// The types below 32 bits of floating point are combined as float, and each combination rounds to nearest even. float16 and
// bfloat16 overflow to infinity. The 8-bit types follow the OCP specification (e4m3 has no infinity; NaN is 0x7f, e5m2 as
// IEEE) and saturate at their largest finite value; only an infinite operand makes an infinite e5m2. Integers wrap.
// Minimum and maximum are NaN if an operand is.
//
// Owns: nothing. Threads: any. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pl::collectives {

enum class element : std::uint8_t {
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  float16,
  bfloat16,
  float32,
  float64,
  float8_e4m3,
  float8_e5m2,
};
inline constexpr unsigned kElements = 14;

enum class reduction : std::uint8_t { sum, product, minimum, maximum };
inline constexpr unsigned kReductions = 4;

std::size_t size_of(element type) noexcept;
const char* name_of(element type) noexcept;  // as the C constants: "int8", "float8_e4m3"

// out[i] = first[i] op second[i]. `out` may be one of the two; other overlaps are not allowed. Sums and products of floats
// depend on the order of more than two operands, so the callers fix it.
void combine(element type, reduction op, const void* first, const void* second, void* out, std::size_t count) noexcept;

}  // namespace pl::collectives
