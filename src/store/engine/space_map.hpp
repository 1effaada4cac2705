// SPDX-License-Identifier: Apache-2.0
// Which bytes of a linear space are free: best fit, neighbours merged, pieces never across a region's border (a chunk of the
// arena, an extent file). Used for memory and for disk. Not thread-safe; its owners lock.
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
  // Sizes are in bytes and multiples of kBlockBytes, `region_bytes` too.
  explicit space_map(std::uint64_t region_bytes) noexcept : region_bytes_(region_bytes) {}

  // More space: free from now on. Precondition: it overlaps nothing that was added before.
  void add(segment range);
  // Makes exactly this range used. False, and nothing changed, unless all of it was free.
  bool take(segment range);
  // At least `size_bytes` rounded up to blocks: one piece if there is one so long, else the longest pieces, at most
  // `max_pieces`. Nothing if that does not do.
  std::optional<std::vector<segment>> allocate(std::uint64_t size_bytes, std::size_t max_pieces = kMaxSegments);
  // Precondition: the pieces are used.
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
