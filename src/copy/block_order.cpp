// SPDX-License-Identifier: Apache-2.0
#include "copy/block_order.hpp"

#include <array>
#include <atomic>
#include <bit>
#include <utility>

namespace pl::copy {

// The digits of the bits in which places differ: all of them in one or two passes, or as many upper bits as two passes
// cover.
block_order::digits block_order::first_digits(std::uint32_t least, std::uint32_t last) {
  digits out;
  out.least = least;
  const unsigned bits = last > least ? static_cast<unsigned>(std::bit_width(last - least)) : 0;
  out.shift = bits > 2 * kDigitBits ? bits - 2 * kDigitBits : 0;
  const unsigned used = bits - out.shift;
  out.bits = used <= kDigitBits ? used : used / 2;
  out.mask = (1u << out.bits) - 1;
  out.next_mask = (1u << (used - out.bits)) - 1;
  return out;
}

namespace {

std::array<std::atomic<block_orders*>, 4> g_kept;

}  // namespace

borrowed_orders::borrowed_orders() {
  for (auto& slot : g_kept)
    if (own_.reset(slot.exchange(nullptr, std::memory_order_acquire)); own_ != nullptr) return;
  own_ = std::make_unique<block_orders>();
}

borrowed_orders::~borrowed_orders() {
  for (auto& slot : g_kept) {
    block_orders* nothing = nullptr;
    if (slot.compare_exchange_strong(nothing, own_.get(), std::memory_order_release, std::memory_order_relaxed)) {
      static_cast<void>(own_.release());
      return;
    }
  }
}

// Turns counts into start positions.
void block_order::make_begins(counters& counted) {
  std::uint32_t begin = 0;
  for (std::uint32_t& one : counted) begin += std::exchange(one, begin);
}

std::span<const block_order::entry> block_order::sort_entries(std::uint32_t least, std::uint32_t last) {
  const digits low = first_digits(least, last), high = low.next();
  digit_counts counts{};
  for (std::size_t i = 0; i < count_; ++i) counts.add(low, high, entries_[i].place);
  return place_entries(low, high, counts);
}

std::span<const block_order::entry> block_order::place_entries(const digits& low, const digits& high, digit_counts& counts) {
  entry *const made = entries_.get(), *const by_low = other_.get();
  make_begins(counts.low);
  for (std::size_t i = 0; i < count_; ++i) by_low[counts.low[low.digit_of(made[i].place)]++] = made[i];
  if (high.mask == 0) return {by_low, count_};
  make_begins(counts.high);
  for (std::size_t i = 0; i < count_; ++i) made[counts.high[high.digit_of(by_low[i].place)]++] = by_low[i];
  return {made, count_};
}

}  // namespace pl::copy
