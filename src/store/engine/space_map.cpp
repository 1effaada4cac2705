// SPDX-License-Identifier: Apache-2.0
#include "store/engine/space_map.hpp"

#include <algorithm>
#include <cassert>

namespace pl::store {

void space_map::add(segment range) {
  total_bytes_ += range.size_bytes;
  while (range.size_bytes > 0) {
    const std::uint64_t border = (range.offset_bytes / region_bytes_ + 1) * region_bytes_;
    const std::uint64_t size = std::min(range.size_bytes, border - range.offset_bytes);
    insert(range.offset_bytes, size);
    range.offset_bytes += size;
    range.size_bytes -= size;
  }
}

bool space_map::take(segment range) {
  auto found = by_offset_.upper_bound(range.offset_bytes);
  if (found == by_offset_.begin()) return false;
  --found;
  const auto [offset, size] = *found;
  if (range.size_bytes == 0 || range.offset_bytes - offset > size || size - (range.offset_bytes - offset) < range.size_bytes)
    return false;
  remove(found);
  const std::uint64_t end = range.offset_bytes + range.size_bytes;
  if (range.offset_bytes > offset) insert(offset, range.offset_bytes - offset);
  if (end < offset + size) insert(end, offset + size - end);
  return true;
}

std::optional<std::vector<segment>> space_map::allocate(std::uint64_t size_bytes, std::size_t max_pieces) {
  std::uint64_t wanted = whole_blocks(size_bytes);
  std::vector<segment> pieces;
  if (wanted == 0) return pieces;
  if (wanted > free_bytes_) return std::nullopt;
  if (const auto fit = by_size_.lower_bound({wanted, 0}); fit != by_size_.end()) {
    pieces.push_back(cut(by_offset_.find(fit->second), wanted));
    return pieces;
  }
  while (wanted > 0 && pieces.size() < max_pieces) {
    // Takes the shortest range that fits, so that the longest one stays whole.
    auto fit = by_size_.lower_bound({wanted, 0});
    if (fit == by_size_.end()) --fit;
    pieces.push_back(cut(by_offset_.find(fit->second), std::min(wanted, fit->first)));
    wanted -= pieces.back().size_bytes;
  }
  if (wanted == 0) return pieces;
  release(pieces);
  return std::nullopt;
}

void space_map::release(std::span<const segment> pieces) {
  for (const segment& piece : pieces) insert(piece.offset_bytes, piece.size_bytes);
}

void space_map::insert(std::uint64_t offset, std::uint64_t size) {
  free_bytes_ += size;
  auto next = by_offset_.lower_bound(offset);
  assert(next == by_offset_.end() || offset + size <= next->first);
  if (next != by_offset_.begin()) {
    const auto before = std::prev(next);
    assert(before->first + before->second <= offset);
    if (before->first + before->second == offset && offset % region_bytes_ != 0) {
      offset = before->first;
      size += before->second;
      by_size_.erase({before->second, before->first});
      by_offset_.erase(before);
    }
  }
  if (next != by_offset_.end() && offset + size == next->first && next->first % region_bytes_ != 0) {
    size += next->second;
    by_size_.erase({next->second, next->first});
    by_offset_.erase(next);
  }
  by_offset_.emplace(offset, size);
  by_size_.emplace(size, offset);
}

void space_map::remove(std::map<std::uint64_t, std::uint64_t>::iterator range) {
  free_bytes_ -= range->second;
  by_size_.erase({range->second, range->first});
  by_offset_.erase(range);
}

segment space_map::cut(std::map<std::uint64_t, std::uint64_t>::iterator range, std::uint64_t size) {
  const auto [offset, whole] = *range;
  remove(range);
  if (whole > size) insert(offset + size, whole - size);
  return segment{offset, size};
}

}  // namespace pl::store
