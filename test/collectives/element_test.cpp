// SPDX-License-Identifier: Apache-2.0
#include "collectives/element.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "collectives/small_float.hpp"

namespace pl::collectives {
namespace {

// What the formats' definitions say, without bit tricks.
double meaning(std::uint32_t bits, int exponent_bits, int mantissa_bits, bool has_infinity) {
  const std::uint32_t magnitude = bits & ((1u << (exponent_bits + mantissa_bits)) - 1);
  const double sign = (bits >> (exponent_bits + mantissa_bits)) != 0 ? -1 : 1;
  const auto exponent = static_cast<int>(magnitude >> mantissa_bits), top = (1 << exponent_bits) - 1;
  const std::uint32_t mantissa = magnitude & ((1u << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (has_infinity && exponent == top) return mantissa == 0 ? sign * HUGE_VAL : std::nan("");
  if (!has_infinity && magnitude == (1u << (exponent_bits + mantissa_bits)) - 1) return std::nan("");
  const double fraction = mantissa / std::pow(2.0, mantissa_bits);
  return sign * (exponent == 0 ? fraction * std::pow(2.0, 1 - bias) : (1 + fraction) * std::pow(2.0, exponent - bias));
}

template <class Format>
void check_format(int exponent_bits, int mantissa_bits, bool has_infinity, bool saturates) {
  const std::uint32_t all = 1u << Format::kBits, negative = all / 2;
  for (std::uint32_t bits = 0; bits < all; ++bits) {
    const double wanted = meaning(bits, exponent_bits, mantissa_bits, has_infinity);
    const float got = Format::decode(bits);
    if (std::isnan(wanted)) {
      ASSERT_TRUE(std::isnan(got)) << bits;
      ASSERT_TRUE(std::isnan(meaning(Format::encode(got), exponent_bits, mantissa_bits, has_infinity))) << bits;
      continue;
    }
    ASSERT_EQ(static_cast<double>(got), wanted) << bits;
    ASSERT_EQ(Format::encode(got), bits);
  }
  // Between two neighbours: the middle goes to the even one, what is nearer to one goes there. bfloat16's middles need more
  // digits than a subnormal float has.
  for (std::uint32_t bits = 0; bits < negative; ++bits) {
    const double low = meaning(bits, exponent_bits, mantissa_bits, has_infinity);
    const double high = meaning(bits + 1, exponent_bits, mantissa_bits, has_infinity);
    if (!std::isfinite(low) || !std::isfinite(high) || bits + 1 == negative) continue;
    const auto middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(static_cast<double>(middle), (low + high) / 2) << bits;
    ASSERT_EQ(Format::encode(middle), bits % 2 == 0 ? bits : bits + 1) << bits;
    ASSERT_EQ(Format::encode(std::nextafter(middle, 0.0f)), bits) << bits;
    ASSERT_EQ(Format::encode(std::nextafter(middle, HUGE_VALF)), bits + 1) << bits;
    ASSERT_EQ(Format::encode(-middle), negative | (bits % 2 == 0 ? bits : bits + 1)) << bits;
  }
  const float largest = Format::decode(Format::kLargest);
  EXPECT_EQ(Format::encode(std::numeric_limits<float>::max()), saturates ? Format::kLargest : Format::kInfinity);
  EXPECT_EQ(Format::encode(-std::numeric_limits<float>::max()),
            negative | (saturates ? Format::kLargest : Format::kInfinity));
  EXPECT_EQ(Format::encode(largest), Format::kLargest);
  if (has_infinity) EXPECT_EQ(Format::encode(HUGE_VALF), Format::kInfinity);
  else EXPECT_TRUE(std::isnan(Format::decode(Format::encode(HUGE_VALF))));
}

TEST(element, small_floats_are_what_their_formats_say) {
  check_format<float16_format>(5, 10, true, false);
  check_format<bfloat16_format>(8, 7, true, false);
  check_format<e4m3_format>(4, 3, false, true);
  check_format<e5m2_format>(5, 2, true, true);
  EXPECT_EQ(e4m3_format::decode(e4m3_format::kLargest), 448.0f);
  EXPECT_EQ(e5m2_format::decode(e5m2_format::kLargest), 57344.0f);
}

template <class T>
T one(element type, reduction op, T first, T second) {
  T out{};
  combine(type, op, &first, &second, &out, 1);
  return out;
}

TEST(element, integers_wrap) {
  EXPECT_EQ(one<std::int8_t>(element::int8, reduction::sum, 127, 1), -128);
  EXPECT_EQ(one<std::uint16_t>(element::uint16, reduction::product, 65535, 65535), 1);
  EXPECT_EQ(one<std::int16_t>(element::int16, reduction::product, -32768, -1), -32768);
  EXPECT_EQ(one(element::int32, reduction::sum, std::numeric_limits<std::int32_t>::max(), 1),
            std::numeric_limits<std::int32_t>::min());
  EXPECT_EQ(one<std::int64_t>(element::int64, reduction::product, std::int64_t{1} << 62, 4), 0);
  EXPECT_EQ(one<std::int8_t>(element::int8, reduction::minimum, -1, 1), -1);
  EXPECT_EQ(one<std::uint8_t>(element::uint8, reduction::minimum, 255, 1), 1);
}

TEST(element, minimum_and_maximum_keep_nan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto op : {reduction::minimum, reduction::maximum}) {
    EXPECT_TRUE(std::isnan(one(element::float32, op, nan, 1.0f)));
    EXPECT_TRUE(std::isnan(one(element::float32, op, 1.0f, nan)));
  }
  EXPECT_EQ(one(element::float64, reduction::maximum, -2.0, 3.0), 3.0);
}

TEST(element, sums_of_eight_bits_saturate) {
  const auto e4m3 = [](float value) { return static_cast<std::uint8_t>(e4m3_format::encode(value)); };
  EXPECT_EQ(one(element::float8_e4m3, reduction::sum, e4m3(448), e4m3(448)), e4m3(448));
  EXPECT_EQ(one(element::float8_e4m3, reduction::product, e4m3(-448), e4m3(16)), e4m3(-448));
  const auto e5m2 = [](float value) { return static_cast<std::uint8_t>(e5m2_format::encode(value)); };
  EXPECT_EQ(one(element::float8_e5m2, reduction::sum, e5m2(57344), e5m2(57344)), e5m2(57344));
  EXPECT_EQ(one(element::float8_e5m2, reduction::sum, e5m2(HUGE_VALF), e5m2(1)), e5m2(HUGE_VALF));
}

// Buffers of users lie anywhere, and the result may be either operand.
TEST(element, unaligned_and_in_place) {
  constexpr std::size_t kCount = 100;
  std::vector<unsigned char> first(kCount * 8 + 1), second(kCount * 8 + 3);
  for (std::size_t i = 0; i < kCount; ++i) {
    const double a = static_cast<double>(i), b = 0.5;
    std::memcpy(first.data() + 1 + 8 * i, &a, 8);
    std::memcpy(second.data() + 3 + 8 * i, &b, 8);
  }
  combine(element::float64, reduction::sum, first.data() + 1, second.data() + 3, second.data() + 3, kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    double got = 0;
    std::memcpy(&got, second.data() + 3 + 8 * i, 8);
    ASSERT_EQ(got, static_cast<double>(i) + 0.5);
  }
}

}  // namespace
}  // namespace pl::collectives
