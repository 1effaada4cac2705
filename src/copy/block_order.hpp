// SPDX-License-Identifier: Apache-2.0
// The order in which the blocks of a list are given to a copy engine: by their place in host memory. The engine waits
// for the translation of each host page, and finds those of adjacent pages at once: it moves blocks of 4 KiB at 54 GB/s
// in this order, and at 20 to 34 in a random one (docs/results/blocks). Blocks of a list do not overlap, so any order
// is correct.
//
// Takes about 3 ns a block; lists that are already in order are detected at once.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace pl::copy {

class block_order {
 public:
  // Fewer blocks than this, or larger ones, gain nothing.
  static constexpr std::size_t kMinBlocks = 256;
  static constexpr std::uint64_t kMaxBlockBytes = 32u << 10;

  // A block's place in host memory, in units that the caller chooses, and what the caller needs to find the block.
  struct entry {
    std::uint32_t place, tag;
  };

  // Whether sorting pays: it does not if few blocks come after one that lies behind them. Calls place(i) for each i
  // below `count`.
  template <class Place>
  static bool helps(std::size_t count, std::uint64_t block_bytes, Place place) {
    if (count < kMinBlocks || count > UINT32_MAX || block_bytes > kMaxBlockBytes) return false;
    const std::size_t most = count / 16;
    std::size_t steps_back = 0;
    std::uint64_t last = place(0);
    for (std::size_t i = 1; i < count; ++i) {
      const std::uint64_t next = place(i);
      steps_back += next < last;
      if (steps_back > most) return true;
      last = next;
    }
    return false;
  }
  // How many blocks are sorted and given to the engine first: it moves them while the others are sorted.
  static std::size_t head(std::size_t count) { return std::max(count / 16, kMinBlocks / 2); }

  // Sorts entries [begin, end) by place; entry_of(i) makes them, once each. Entries whose places differ little may stay
  // in any order, since two passes are enough. The result is valid until the next call. `places` is above all places;
  // if it is small, digits are counted while the entries are made, which saves a pass.
  template <class EntryOf>
  std::span<const entry> sort(std::size_t begin, std::size_t end, EntryOf entry_of, std::uint64_t places = UINT64_MAX) {
    reserve(end - begin);
    if (places != 0 && places <= kMaxCountedPlaces) {
      const digits low = first_digits(0, static_cast<std::uint32_t>(places - 1)), high = low.next();
      digit_counts counts{};
      for (std::size_t i = begin; i < end; ++i) {
        const entry one = entry_of(i);
        counts.add(low, high, one.place);
        entries_[i - begin] = one;
      }
      return place_entries(low, high, counts);
    }
    std::uint32_t least = UINT32_MAX, last = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const entry one = entry_of(i);
      least = std::min(least, one.place);
      last = std::max(last, one.place);
      entries_[i - begin] = one;
    }
    return sort_entries(least, last);
  }

 private:
  // Bits of a counting pass: its counters and the lines that it writes fit the nearest cache. With 11 bits a pass takes
  // twice as long. Passes are stable, so a pass by higher bits keeps the order of the one before.
  static constexpr unsigned kDigitBits = 8;
  using counters = std::array<std::uint32_t, 1u << kDigitBits>;
  struct digits {
    std::uint32_t least = 0, mask = 0, next_mask = 0;
    unsigned shift = 0, bits = 0;
    std::uint32_t digit_of(std::uint32_t place) const { return (place - least) >> shift & mask; }
    digits next() const { return {least, next_mask, 0, next_mask == 0 ? 0 : shift + bits, 0}; }
  };
  static constexpr std::uint64_t kMaxCountedPlaces = std::uint64_t{1} << 2 * kDigitBits;
  struct digit_counts {
    counters low, high;
    void add(const digits& low_digit, const digits& high_digit, std::uint32_t place) {
      ++low[low_digit.digit_of(place)];
      ++high[high_digit.digit_of(place)];
    }
  };
  static digits first_digits(std::uint32_t least, std::uint32_t last);
  static void make_begins(counters& counted);
  std::span<const entry> sort_entries(std::uint32_t least, std::uint32_t last);
  std::span<const entry> place_entries(const digits& low, const digits& high, digit_counts& counts);

  void reserve(std::size_t count) {
    if (count > room_ || (room_ > kKeptBlocks && count <= kKeptBlocks)) {
      entries_ = std::make_unique_for_overwrite<entry[]>(count);
      other_ = std::make_unique_for_overwrite<entry[]>(count);
      room_ = count;
    }
    count_ = count;
  }

  // The memory of a longer list is released by the next shorter one.
  static constexpr std::size_t kKeptBlocks = 1u << 17;
  std::unique_ptr<entry[]> entries_, other_;
  std::size_t room_ = 0, count_ = 0;
};

// For the blocks that an engine is given first, and for the rest.
struct block_orders {
  block_order head, rest;
};

// Keeps some for later sorts, because allocating memory costs more than sorting. Not thread-local: libraries that are
// opened late have little room there.
class borrowed_orders {
 public:
  borrowed_orders();
  borrowed_orders(const borrowed_orders&) = delete;
  borrowed_orders& operator=(const borrowed_orders&) = delete;
  ~borrowed_orders();
  block_orders* operator->() const noexcept { return own_.get(); }

 private:
  std::unique_ptr<block_orders> own_;
};

}  // namespace pl::copy
