// SPDX-License-Identifier: Apache-2.0
// Which bytes of a linear space are free: best fit, neighbours merged, no piece crosses a region's border (a chunk of
// the arena, an extent file). Used for memory and for disk. Not thread-safe; its owners lock.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "store/engine/types.hpp"

namespace pl::store {

class space_map {
 public:
  // Sizes, including `region_bytes`, are in bytes and multiples of kBlockBytes.
  explicit space_map(std::uint64_t region_bytes) noexcept : region_bytes_(region_bytes) {}

  // Adds free space. Precondition: it overlaps nothing that was added before.
  void add(segment range);
  // Marks exactly this range as used. Returns false and changes nothing unless all of it was free.
  bool take(segment range);
  // Allocates `size_bytes` rounded up to blocks: one piece if one is long enough, otherwise the longest pieces, at most
  // `max_pieces`. Returns nothing if those do not suffice.
  std::optional<std::vector<segment>> allocate(std::uint64_t size_bytes, std::size_t max_pieces = kMaxSegments);
  // Precondition: the pieces are in use.
  void release(std::span<const segment> pieces);

  std::uint64_t free_bytes() const noexcept { return free_bytes_; }
  std::uint64_t total_bytes() const noexcept { return total_bytes_; }

 private:
  void insert(std::uint64_t offset, std::uint64_t size);
  void remove(std::map<std::uint64_t, std::uint64_t>::iterator range);
  segment cut(std::map<std::uint64_t, std::uint64_t>::iterator range, std::uint64_t size);

  std::uint64_t region_bytes_;
  std::map<std::uint64_t, std::uint64_t> by_offset_;           // free ranges: offset -> size
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;  // the same: (size, offset)
  std::uint64_t free_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
};

// `size_bytes` rounded up to whole blocks.
constexpr std::uint64_t whole_blocks(std::uint64_t size_bytes) {
  return (size_bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
}

}  // namespace pl::store
