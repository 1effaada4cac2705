// SPDX-License-Identifier: Apache-2.0
#include "collectives/element.hpp"

#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include "collectives/small_float.hpp"

namespace pl::collectives {
namespace {

struct kind_of_element {
  const char* name;
  std::size_t bytes;
};
constexpr kind_of_element kKinds[kElements] = {
    {"int8", 1},   {"int16", 2},   {"int32", 4},    {"int64", 8},   {"uint8", 1},   {"uint16", 2},      {"uint32", 4},
    {"uint64", 8}, {"float16", 2}, {"bfloat16", 2}, {"float32", 4}, {"float64", 8}, {"float8_e4m3", 1}, {"float8_e5m2", 1},
};

template <reduction kOp, class T>
inline T apply(T first, T second) noexcept {
  if constexpr (kOp == reduction::minimum || kOp == reduction::maximum) {
    if constexpr (std::is_floating_point_v<T>) {
      // A NaN differs from itself; the first one wins.
      if (first != first) return first;
      if (second != second) return second;
    }
    const bool is_second = kOp == reduction::minimum ? second < first : first < second;
    return is_second ? second : first;
  } else if constexpr (std::is_integral_v<T>) {
    // Unsigned and wide enough that neither the sum nor the product is undefined.
    using wide = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
    const wide a = static_cast<wide>(first), b = static_cast<wide>(second);
    return static_cast<T>(kOp == reduction::sum ? a + b : a * b);
  } else {
    return kOp == reduction::sum ? first + second : first * second;
  }
}

// Through memcpy: buffers of users need not be aligned to their type.
template <class T>
inline T load(const void* input, std::size_t i) noexcept {
  T out;
  std::memcpy(&out, static_cast<const std::byte*>(input) + i * sizeof(T), sizeof(T));
  return out;
}
template <class T>
inline void store(void* output, std::size_t i, T value) noexcept {
  std::memcpy(static_cast<std::byte*>(output) + i * sizeof(T), &value, sizeof(T));
}

template <class T, reduction kOp>
void combine_native(const void* first, const void* second, void* out, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) store<T>(out, i, apply<kOp>(load<T>(first, i), load<T>(second, i)));
}

template <class Format>
struct byte_values {  // of the formats with 256 of them
  byte_values() {
    for (std::uint32_t bits = 0; bits < 256; ++bits) all[bits] = Format::decode(bits);
  }
  std::array<float, 256> all;
};

template <class Format, class Bits>
inline float decode(Bits bits) noexcept {
  if constexpr (sizeof(Bits) == 1) {
    static const byte_values<Format> kValues;
    return kValues.all[bits];
  } else if constexpr (std::is_same_v<Format, bfloat16_format>) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  } else {
    return Format::decode(bits);
  }
}

template <class Format, class Bits, reduction kOp>
void combine_small(const void* first, const void* second, void* out, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    const float result = apply<kOp>(decode<Format>(load<Bits>(first, i)), decode<Format>(load<Bits>(second, i)));
    store<Bits>(out, i, static_cast<Bits>(Format::encode(result)));
  }
}

template <reduction kOp>
void combine_as(element type, const void* first, const void* second, void* out, std::size_t count) noexcept {
  switch (type) {
    case element::int8:
      return combine_native<std::int8_t, kOp>(first, second, out, count);
    case element::int16:
      return combine_native<std::int16_t, kOp>(first, second, out, count);
    case element::int32:
      return combine_native<std::int32_t, kOp>(first, second, out, count);
    case element::int64:
      return combine_native<std::int64_t, kOp>(first, second, out, count);
    case element::uint8:
      return combine_native<std::uint8_t, kOp>(first, second, out, count);
    case element::uint16:
      return combine_native<std::uint16_t, kOp>(first, second, out, count);
    case element::uint32:
      return combine_native<std::uint32_t, kOp>(first, second, out, count);
    case element::uint64:
      return combine_native<std::uint64_t, kOp>(first, second, out, count);
    case element::float32:
      return combine_native<float, kOp>(first, second, out, count);
    case element::float64:
      return combine_native<double, kOp>(first, second, out, count);
    case element::float16:
      return combine_small<float16_format, std::uint16_t, kOp>(first, second, out, count);
    case element::bfloat16:
      return combine_small<bfloat16_format, std::uint16_t, kOp>(first, second, out, count);
    case element::float8_e4m3:
      return combine_small<e4m3_format, std::uint8_t, kOp>(first, second, out, count);
    case element::float8_e5m2:
      return combine_small<e5m2_format, std::uint8_t, kOp>(first, second, out, count);
  }
}

}  // namespace

std::size_t size_of(element type) noexcept { return kKinds[static_cast<std::size_t>(type)].bytes; }
const char* name_of(element type) noexcept { return kKinds[static_cast<std::size_t>(type)].name; }

void combine(element type, reduction op, const void* first, const void* second, void* out, std::size_t count) noexcept {
  switch (op) {
    case reduction::sum:
      return combine_as<reduction::sum>(type, first, second, out, count);
    case reduction::product:
      return combine_as<reduction::product>(type, first, second, out, count);
    case reduction::minimum:
      return combine_as<reduction::minimum>(type, first, second, out, count);
    case reduction::maximum:
      return combine_as<reduction::maximum>(type, first, second, out, count);
  }
}

}  // namespace pl::collectives
