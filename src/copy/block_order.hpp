// SPDX-License-Identifier: Apache-2.0
// The order in which the blocks of a list are given to a copy engine: by their places in host memory. The engine waits for
// the translation of each page of it, and finds those of neighbours at once: one engine moves 4 KiB blocks at 54 GB/s in
// this order and at 20 to 34 in a random one (docs/results/blocks). Blocks of a list do not overlap, so any order is right.
//
// Some 3 ns a block; lists that are in order already are seen at once.
#pragma once

#include <algorithm>
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

  // Of a block: where it lies in host memory, in units that the caller chooses, and what the caller needs to find it.
  struct entry {
    std::uint32_t place, tag;
  };

  // Whether a list gains: few blocks of it come after one that lies behind them. place(i) for each i below `count`.
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
  // The engine is given so many first, which are sorted by themselves, and moves them while the others are sorted.
  static std::size_t head(std::size_t count) { return std::max(count / 16, kMinBlocks / 2); }

  // Entries [begin, end) by place, made by entry_of(i). Of places that differ by little the order may be any: two passes are
  // enough. They stay until the next call.
  template <class EntryOf>
  std::span<const entry> sort(std::size_t begin, std::size_t end, EntryOf entry_of) {
    reserve(end - begin);
    std::uint32_t least = UINT32_MAX, last = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const entry one = entry_of(i);
      least = std::min(least, one.place);
      last = std::max(last, one.place);
      entries_[i - begin] = one;
    }
    if (count_ > 1) sort_entries(least, last);
    return {entries_.get(), count_};
  }

 private:
  void reserve(std::size_t count) {
    if (count > room_) {
      entries_ = std::make_unique_for_overwrite<entry[]>(count);
      other_ = std::make_unique_for_overwrite<entry[]>(count);
      room_ = count;
    }
    count_ = count;
  }
  void sort_entries(std::uint32_t least, std::uint32_t last);
  void pass(unsigned shift, unsigned bits, std::uint32_t least);

  std::unique_ptr<entry[]> entries_, other_;
  std::size_t room_ = 0, count_ = 0;
};

}  // namespace pl::copy
