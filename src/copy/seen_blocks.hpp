// SPDX-License-Identifier: Apache-2.0
// Whether a list names a block twice, in about 2 ns a block.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pl::copy {

// Numbers of blocks that were seen. A list may name a thousand of a pool's twenty million blocks; a bit for each of
// those would cost more than the transfer.
class seen_blocks {
 public:
  static constexpr std::uint64_t kMaxNumber = UINT32_MAX - 1;

  // `last`: the largest number that will be added, at most kMaxNumber.
  seen_blocks(std::size_t count, std::uint64_t last) {
    constexpr std::uint64_t kDenseBitsPerBlock = 128;
    is_dense_ = last / kDenseBitsPerBlock <= count;
    if (is_dense_) {
      words_.assign(last / 32 + 1, 0);
    } else {
      shift_ = 64u - static_cast<unsigned>(std::bit_width(4 * count - 1));
      words_.assign(std::size_t{1} << (64u - shift_), kFree);
    }
  }
  // Calls number(i) for all i below `count`; returns the first i whose number was already there, otherwise `count`.
  template <class Number>
  std::size_t add_all(std::size_t count, Number number) {
    std::uint32_t* const words = words_.data();
    if (is_dense_) {
      for (std::size_t i = 0; i < count; ++i) {
        const std::uint64_t block = number(i);
        const std::uint32_t bit = 1u << block % 32, before = words[block / 32];
        if ((before & bit) != 0) return i;
        words[block / 32] = before | bit;
      }
      return count;
    }
    const std::size_t mask = words_.size() - 1;
    for (std::size_t i = 0; i < count; ++i) {
      const auto block = static_cast<std::uint32_t>(number(i));
      std::size_t slot = block * 0x9e37'79b9'7f4a'7c15u >> shift_;
      for (; words[slot] != kFree; slot = (slot + 1) & mask)
        if (words[slot] == block) return i;
      words[slot] = block;
    }
    return count;
  }

 private:
  static constexpr std::uint32_t kFree = UINT32_MAX;
  std::vector<std::uint32_t> words_;
  bool is_dense_;
  unsigned shift_ = 0;
};

}  // namespace pl::copy
