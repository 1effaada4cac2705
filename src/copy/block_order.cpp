// SPDX-License-Identifier: Apache-2.0
#include "copy/block_order.hpp"

#include <array>
#include <bit>
#include <utility>

namespace pl::copy {

namespace {

// Of a pass: its counters and the lines that it writes to fit the nearest cache, and clearing them costs less than the
// blocks do. With 11 bits a pass takes twice as long.
constexpr unsigned kDigitBits = 8;

}  // namespace

// A counting pass: stable, so that a later one by higher bits keeps what this one did.
void block_order::pass(unsigned shift, unsigned bits, std::uint32_t least) {
  std::array<std::uint32_t, 1u << kDigitBits> begins{};
  const std::uint32_t mask = (1u << bits) - 1;
  const auto digit = [=](const entry& one) { return (one.place - least) >> shift & mask; };
  const std::span<const entry> unsorted(entries_.get(), count_);
  for (const entry& one : unsorted) ++begins[digit(one)];
  std::uint32_t begin = 0;
  for (std::uint32_t& one : begins) begin += std::exchange(one, begin);
  entry* const sorted = other_.get();
  for (const entry& one : unsorted) sorted[begins[digit(one)]++] = one;
  entries_.swap(other_);
}

void block_order::sort_entries(std::uint32_t least, std::uint32_t last) {
  const auto bits = static_cast<unsigned>(std::bit_width(last - least));
  const unsigned skipped = bits > 2 * kDigitBits ? bits - 2 * kDigitBits : 0, used = bits - skipped;
  if (used == 0) return;
  if (used <= kDigitBits) return pass(skipped, used, least);
  const unsigned low = used / 2;
  pass(skipped, low, least);
  pass(skipped + low, used - low, least);
}

}  // namespace pl::copy
