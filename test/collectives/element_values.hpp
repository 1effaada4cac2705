// SPDX-License-Identifier: Apache-2.0
// What the ranks contribute to a reduction, and what it must give: values of which every type holds every partial result
// exactly, so that the order does not matter.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "collectives/algorithms.hpp"
#include "collectives/small_float.hpp"

namespace pl::collectives {

// Contribution of a rank: -1, 0, 1 (or 0, 1) for sums, minimum and maximum; 1 and 2 for products.
inline int value_of(summation terms, int rank, std::size_t i) {
  const auto mixed = (i * 2654435761u + static_cast<std::size_t>(rank) * 40503u) >> 3;
  if (terms.op == reduction::product) return 1 + static_cast<int>(mixed % 2);
  const bool is_unsigned = terms.type >= element::uint8 && terms.type <= element::uint64;
  return static_cast<int>(mixed % 3) - (is_unsigned ? 0 : 1);
}

inline int combined(summation terms, int size, std::size_t i) {
  int out = value_of(terms, 0, i);
  for (int rank = 1; rank < size; ++rank) {
    const int next = value_of(terms, rank, i);
    out = terms.op == reduction::sum       ? out + next
          : terms.op == reduction::product ? out * next
          : terms.op == reduction::minimum ? std::min(out, next)
                                           : std::max(out, next);
  }
  return out;
}

template <class T>
void write(std::vector<unsigned char>& out, std::size_t i, T value) {
  std::memcpy(out.data() + i * sizeof value, &value, sizeof value);
}

inline void write_as(std::vector<unsigned char>& out, element type, std::size_t i, int value) {
  const auto real = static_cast<float>(value);
  switch (type) {
    case element::int8:
    case element::uint8:
      return write(out, i, static_cast<std::int8_t>(value));
    case element::int16:
    case element::uint16:
      return write(out, i, static_cast<std::int16_t>(value));
    case element::int32:
    case element::uint32:
      return write(out, i, value);
    case element::int64:
    case element::uint64:
      return write(out, i, std::int64_t{value});
    case element::float32:
      return write(out, i, real);
    case element::float64:
      return write(out, i, static_cast<double>(value));
    case element::float16:
      return write(out, i, static_cast<std::uint16_t>(float16_format::encode(real)));
    case element::bfloat16:
      return write(out, i, static_cast<std::uint16_t>(bfloat16_format::encode(real)));
    case element::float8_e4m3:
      return write(out, i, static_cast<std::uint8_t>(e4m3_format::encode(real)));
    case element::float8_e5m2:
      return write(out, i, static_cast<std::uint8_t>(e5m2_format::encode(real)));
  }
}

inline std::vector<unsigned char> contribution(summation terms, int rank, std::size_t count) {
  std::vector<unsigned char> out(terms.bytes(count));
  for (std::size_t i = 0; i < count; ++i) write_as(out, terms.type, i, value_of(terms, rank, i));
  return out;
}
inline std::vector<unsigned char> expected(summation terms, int size, std::size_t begin, std::size_t count) {
  std::vector<unsigned char> out(terms.bytes(count));
  for (std::size_t i = 0; i < count; ++i) write_as(out, terms.type, i, combined(terms, size, begin + i));
  return out;
}

}  // namespace pl::collectives
