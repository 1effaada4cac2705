// SPDX-License-Identifier: Apache-2.0
// Floating-point types that the CPU has no arithmetic for, as bits: to float exactly, from float to nearest even. Also for
// kernels, where nvcc compiles this file as C++17.
//
// Owns: nothing. Threads: any. Errors: none.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define PL_SMALL_FLOAT_FN __host__ __device__ __forceinline__
#else
#define PL_SMALL_FLOAT_FN inline
#endif

namespace pl::collectives {

PL_SMALL_FLOAT_FN float float_of_bits(std::uint32_t bits) noexcept {
  float out;
  __builtin_memcpy(&out, &bits, sizeof out);
  return out;
}
PL_SMALL_FLOAT_FN std::uint32_t bits_of_float(float value) noexcept {
  std::uint32_t out;
  __builtin_memcpy(&out, &value, sizeof out);
  return out;
}

// A binary format of at most 16 bits. `kHasInfinity`: as IEEE; else all exponents are numbers, and all ones is NaN.
template <int kExponentBits, int kMantissaBits, bool kHasInfinity, bool kSaturates>
struct small_format {
  static constexpr int kBits = 1 + kExponentBits + kMantissaBits;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr std::uint32_t kSign = 1u << (kBits - 1);
  static constexpr std::uint32_t kMagnitude = kSign - 1;
  static constexpr std::uint32_t kInfinity = ((1u << kExponentBits) - 1) << kMantissaBits;  // if it has one
  static constexpr std::uint32_t kLargest = kHasInfinity ? kInfinity - 1 : kMagnitude - 1;
  static constexpr std::uint32_t kNan = kHasInfinity ? kInfinity | 1u << (kMantissaBits - 1) : kMagnitude;

  PL_SMALL_FLOAT_FN static float decode(std::uint32_t bits) noexcept {
    const std::uint32_t magnitude = bits & kMagnitude;
    const std::uint32_t sign = (bits & kSign) != 0 ? 0x80000000u : 0u;
    if (kHasInfinity ? magnitude > kInfinity : magnitude == kNan) return float_of_bits(sign | 0x7fc00000u);
    if (kHasInfinity && magnitude == kInfinity) return float_of_bits(sign | 0x7f800000u);
    const std::uint32_t exponent = magnitude >> kMantissaBits;
    const std::uint32_t mantissa = magnitude & ((1u << kMantissaBits) - 1);
    if (exponent == 0) {  // subnormal, or zero: exact in float for every format here but bfloat16, whose bits are float's
      constexpr int kStep = 1 - kBias - kMantissaBits;  // the least number is 2 to this
      constexpr std::uint32_t kLeast =
          kStep >= -126 ? static_cast<std::uint32_t>(kStep + 127) << 23 : 1u << (kStep >= -126 ? 0 : kStep + 149);
      const float value = static_cast<float>(mantissa) * float_of_bits(kLeast);
      return sign != 0 ? -value : value;
    }
    return float_of_bits(sign | (exponent + 127 - kBias) << 23 | mantissa << (23 - kMantissaBits));
  }

  PL_SMALL_FLOAT_FN static std::uint32_t encode(float value) noexcept {
    const std::uint32_t bits = bits_of_float(value);
    const std::uint32_t sign = bits >> 31 != 0 ? kSign : 0u;
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return sign | kNan;
    if (magnitude == 0x7f800000u) return sign | (kHasInfinity ? kInfinity : kNan);
    const std::uint32_t rounded = round(magnitude);
    if (rounded <= kLargest) return sign | rounded;
    return sign | (kSaturates ? kLargest : kInfinity);
  }

 private:
  // Magnitude of a finite float in this format, to nearest even; above kLargest if it is too large.
  PL_SMALL_FLOAT_FN static std::uint32_t round(std::uint32_t magnitude) noexcept {
    constexpr int kDropped = 23 - kMantissaBits;
    constexpr int kSmallestExponent = 127 - kBias + 1;  // of a normal number, as float has it
    const int exponent = static_cast<int>(magnitude >> 23);
    if (exponent >= kSmallestExponent) {
      const std::uint32_t rebased = magnitude - (static_cast<std::uint32_t>(127 - kBias) << 23);
      return (rebased + ((1u << (kDropped - 1)) - 1) + ((rebased >> kDropped) & 1u)) >> kDropped;
    }
    const int shift = kDropped + kSmallestExponent - (exponent == 0 ? 1 : exponent);
    if (shift > 25) return 0;
    const std::uint32_t mantissa = (magnitude & 0x7fffffu) | (exponent != 0 ? 1u << 23 : 0u);
    return (mantissa + ((1u << (shift - 1)) - 1) + ((mantissa >> shift) & 1u)) >> shift;
  }
};

using float16_format = small_format<5, 10, true, false>;
using bfloat16_format = small_format<8, 7, true, false>;
using e4m3_format = small_format<4, 3, false, true>;
using e5m2_format = small_format<5, 2, true, true>;

}  // namespace pl::collectives
