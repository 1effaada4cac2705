// SPDX-License-Identifier: Apache-2.0
// Elements in kernels: how their bits become numbers that are combined, and back. The rules are those of element.hpp.
//
// A kernel takes elements out of 8-byte words. What is combined stays a number (float for the formats below 32 bits) until
// the result is stored, so that it is rounded once.
#pragma once

#include "collectives/small_float.hpp"
#include "cuda/kernel_device.cuh"

namespace pl::collectives {

enum : unsigned { kSum, kProduct, kMinimum, kMaximum };  // as enum reduction

#if defined(__CUDACC__)
PL_DEVICE float float_of_half(std::uint16_t bits) {
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(bits));
  return out;
}
PL_DEVICE std::uint16_t half_of_float(float value) {
  std::uint16_t out;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out) : "f"(value));
  return out;
}
#else
PL_DEVICE float float_of_half(std::uint16_t bits) { return float16_format::decode(bits); }
PL_DEVICE std::uint16_t half_of_float(float value) { return static_cast<std::uint16_t>(float16_format::encode(value)); }
#endif

// Bits: the element as it lies in memory; number: what is combined.
template <class Bits, class Number>
struct native_numbers {
  using bits = Bits;
  using number = Number;
  PL_DEVICE static number decode(bits value) {
    Number out;
    __builtin_memcpy(&out, &value, sizeof out);
    return out;
  }
  PL_DEVICE static bits encode(number value) {
    Bits out;
    __builtin_memcpy(&out, &value, sizeof out);
    return out;
  }
};
template <class Bits, class Element, class Number>
struct integer_numbers {
  using bits = Bits;
  using number = Number;
  PL_DEVICE static number decode(bits value) { return static_cast<Number>(static_cast<Element>(value)); }
  PL_DEVICE static bits encode(number value) { return static_cast<Bits>(value); }
};
struct half_numbers {
  using bits = std::uint16_t;
  using number = float;
  PL_DEVICE static float decode(bits value) { return float_of_half(value); }
  PL_DEVICE static bits encode(float value) { return half_of_float(value); }
};
template <class Format, class Bits>
struct format_numbers {
  using bits = Bits;
  using number = float;
  PL_DEVICE static float decode(bits value) { return Format::decode(value); }
  PL_DEVICE static bits encode(float value) { return static_cast<Bits>(Format::encode(value)); }
};
struct bfloat16_numbers {
  using bits = std::uint16_t;
  using number = float;
  PL_DEVICE static float decode(bits value) { return float_of_bits(static_cast<std::uint32_t>(value) << 16); }
  PL_DEVICE static bits encode(float value) { return static_cast<bits>(bfloat16_format::encode(value)); }
};

using int8_numbers = integer_numbers<std::uint8_t, std::int8_t, std::int32_t>;
using int16_numbers = integer_numbers<std::uint16_t, std::int16_t, std::int32_t>;
using int32_numbers = integer_numbers<std::uint32_t, std::int32_t, std::int32_t>;
using int64_numbers = integer_numbers<std::uint64_t, std::int64_t, std::int64_t>;
using uint8_numbers = integer_numbers<std::uint8_t, std::uint8_t, std::uint32_t>;
using uint16_numbers = integer_numbers<std::uint16_t, std::uint16_t, std::uint32_t>;
using uint32_numbers = integer_numbers<std::uint32_t, std::uint32_t, std::uint32_t>;
using uint64_numbers = integer_numbers<std::uint64_t, std::uint64_t, std::uint64_t>;
using float16_numbers = half_numbers;
using float32_numbers = native_numbers<std::uint32_t, float>;
using float64_numbers = native_numbers<std::uint64_t, double>;
using float8_e4m3_numbers = format_numbers<e4m3_format, std::uint8_t>;
using float8_e5m2_numbers = format_numbers<e5m2_format, std::uint8_t>;

// Sums and products of integers are made unsigned, since they wrap.
template <class Number>
struct unsigned_of {
  using type = Number;
};
template <>
struct unsigned_of<std::int32_t> {
  using type = std::uint32_t;
};
template <>
struct unsigned_of<std::int64_t> {
  using type = std::uint64_t;
};

template <class Number>
PL_DEVICE Number combine_numbers(unsigned op, Number first, Number second) {
  using wrapping = typename unsigned_of<Number>::type;
  if (op == kSum) return static_cast<Number>(static_cast<wrapping>(first) + static_cast<wrapping>(second));
  if (op == kProduct) return static_cast<Number>(static_cast<wrapping>(first) * static_cast<wrapping>(second));
  if (first != first) return first;  // a NaN
  if (second != second) return second;
  const bool is_second = op == kMinimum ? second < first : first < second;
  return is_second ? second : first;
}

// The elements of one 8-byte word, as numbers.
template <class Numbers>
struct word_values {
  using bits = typename Numbers::bits;
  static constexpr unsigned kElements = 8 / sizeof(bits);
  typename Numbers::number value[kElements] = {};

  PL_DEVICE static bits element(std::uint64_t word, unsigned i) { return static_cast<bits>(word >> (8 * sizeof(bits) * i)); }
  PL_DEVICE void set(std::uint64_t word) {
    for (unsigned i = 0; i < kElements; ++i) value[i] = Numbers::decode(element(word, i));
  }
  PL_DEVICE void combine(unsigned op, std::uint64_t word) {
    for (unsigned i = 0; i < kElements; ++i) value[i] = combine_numbers(op, value[i], Numbers::decode(element(word, i)));
  }
  PL_DEVICE std::uint64_t word() const {
    std::uint64_t out = 0;
    for (unsigned i = 0; i < kElements; ++i)
      out |= static_cast<std::uint64_t>(Numbers::encode(value[i])) << (8 * sizeof(bits) * i);
    return out;
  }
};

template <class Numbers>
struct vector_values {
  word_values<Numbers> low, high;
  PL_DEVICE void set(dev::vec16 value) { low.set(value.low), high.set(value.high); }
  PL_DEVICE void combine(unsigned op, dev::vec16 value) { low.combine(op, value.low), high.combine(op, value.high); }
  PL_DEVICE dev::vec16 vector() const { return {low.word(), high.word()}; }
};

// ---- Memory of users, which may begin and end anywhere. `is_aligned`: their addresses are multiples of 16.

// Up to 8 bytes of elements at any address; zeros behind `bytes`.
template <class Bits>
PL_RARE_DEVICE std::uint64_t load_elements(std::uint64_t address, std::uint64_t bytes) {
  std::uint64_t out = 0;
  for (unsigned i = 0; i < 8 && i < bytes; i += sizeof(Bits))
    out |= static_cast<std::uint64_t>(dev::load_relaxed<Bits>(address + i)) << (8 * i);
  return out;
}
template <class Bits>
PL_RARE_DEVICE void store_elements(std::uint64_t address, std::uint64_t bytes, std::uint64_t word) {
  for (unsigned i = 0; i < 8 && i < bytes; i += sizeof(Bits))
    dev::store_relaxed<Bits>(address + i, static_cast<Bits>(word >> (8 * i)));
}

// The vector `offset` bytes into `bytes` of memory; zeros behind its end.
template <class Bits>
PL_DEVICE dev::vec16 load_part(bool is_aligned, std::uint64_t address, std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t begin = address + offset, left = bytes - offset;
  if (is_aligned && left >= 16) return dev::load_stream_vec16(begin);
  return {load_elements<Bits>(begin, left), left > 8 ? load_elements<Bits>(begin + 8, left - 8) : 0};
}
template <class Bits>
PL_DEVICE void store_part(bool is_aligned, std::uint64_t address, std::uint64_t offset, std::uint64_t bytes,
                          dev::vec16 value) {
  const std::uint64_t begin = address + offset, left = bytes - offset;
  if (is_aligned && left >= 16) return dev::store_stream_vec16(begin, value);
  store_elements<Bits>(begin, left, value.low);
  if (left > 8) store_elements<Bits>(begin + 8, left - 8, value.high);
}

}  // namespace pl::collectives

// PL_DEFINE(name) for each type of element, whose numbers are name_numbers.
#define PL_FOR_EACH_ELEMENT(PL_DEFINE) \
  PL_DEFINE(int8)                      \
  PL_DEFINE(int16)                     \
  PL_DEFINE(int32)                     \
  PL_DEFINE(int64)                     \
  PL_DEFINE(uint8)                     \
  PL_DEFINE(uint16)                    \
  PL_DEFINE(uint32)                    \
  PL_DEFINE(uint64)                    \
  PL_DEFINE(float16)                   \
  PL_DEFINE(bfloat16)                  \
  PL_DEFINE(float32)                   \
  PL_DEFINE(float64)                   \
  PL_DEFINE(float8_e4m3)               \
  PL_DEFINE(float8_e5m2)
