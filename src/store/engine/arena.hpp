// SPDX-License-Identifier: Apache-2.0
// The memory of values: one memfd, mapped once and cut into pieces that can be handed to other processes, and a second
// range of the same size that no other process ever sees. Offsets [0, size) name the memfd, [size, 2 * size) the same
// places in the private range. A place is used in one of the two at a time, so both together never exceed the size of
// the memory tier.
//
// Values of more than kSlotBytes get whole blocks. Smaller ones share a block with others of their size and kind.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "arch/short_mutex.hpp"
#include "store/engine/engine.hpp"
#include "store/engine/space_map.hpp"
#include "store/engine/types.hpp"

namespace pl::store {

// Where a value goes, and for which kind of request.
struct placement {
  bool apart = false;      // in memory that no other process maps
  bool sole_copy = false;  // memory may hold the only copy: the value has to be written before it leaves memory
  bool for_read = false;   // read from disk for a reader
};

class arena {
 public:
  static constexpr std::uint64_t kSmallestSlotBytes = 64;
  static constexpr std::uint64_t kSlotBytes = 2048;  // of the largest slot

  static result<std::unique_ptr<arena>> make(std::uint64_t size_bytes, std::uint64_t chunk_bytes, bool huge_pages);
  ~arena();
  arena(const arena&) = delete;
  arena& operator=(const arena&) = delete;

  const arena_info& info() const noexcept { return info_; }

  // Returns pieces that add up to `size_bytes`; the bytes that rounding adds behind the last one are zeroed. Returns
  // nothing if there is no room: the caller makes room or waits. Thread-safe, as are all calls below.
  std::optional<std::vector<segment>> allocate(std::uint64_t size_bytes, placement place = {});
  void release(std::span<const segment> pieces, bool sole_copy = false) noexcept;
  // Allocates a piece for each of these lengths under one lock. Values longer than a slot lie side by side if there is
  // room for that. A piece has no bytes if nothing was wanted or if no single piece was found (allocate() may still
  // find several).
  void allocate_many(std::span<const std::uint64_t> sizes, placement place, std::span<segment> pieces);
  struct released_piece {
    segment piece;
    bool sole_copy = false;
  };
  // Releases the pieces under one lock, merging neighbours first. Sorts `pieces`.
  void release_many(std::span<released_piece> pieces) noexcept;
  // Counts the pieces as sole copies. Returns false if there are too many of them.
  bool mark_sole_copy(std::span<const segment> pieces) noexcept;
  // Whether the limit on sole copies is what refuses another `size_bytes`.
  bool is_sole_copy_full(std::uint64_t size_bytes) const;
  bool is_in_private_arena(std::span<const segment> pieces) const noexcept {
    return !pieces.empty() && pieces.front().offset_bytes >= info_.size_bytes;
  }
  // Waits until something is released after `seen` (a value of releases()). Returns false at the deadline.
  bool wait_for_release(std::uint64_t seen, deadline_t deadline);
  std::uint64_t releases() const noexcept { return releases_.load(std::memory_order_acquire); }
  std::uint64_t used_bytes() const;

  std::span<std::byte> span_of(const segment& piece) const noexcept {
    return {info_.base + piece.offset_bytes, piece.size_bytes};
  }

 private:
  struct slot_block {  // a block that is cut into slots
    std::uint64_t slot_bytes = 0;
    std::uint64_t free = 0;  // bit i is set: slot i is free
    bool sole_copy = false;
  };
  struct slot_kind {
    std::uint64_t slot_bytes;
    bool apart, sole_copy;
    auto operator<=>(const slot_kind&) const = default;
  };
  arena(const arena_info& info);
  std::optional<segment> allocate_slot(std::uint64_t size_bytes, placement place);
  std::optional<std::vector<segment>> allocate_blocks(std::uint64_t size_bytes, placement place,
                                                      std::size_t max_pieces = kMaxSegments);
  void allocate_side_by_side(std::span<const std::uint64_t> sizes, placement place, std::span<segment> pieces);
  bool lies_in_slot(const segment& piece) const;
  void zero_behind(segment& piece, std::uint64_t used_bytes) const noexcept;
  bool may_take(std::uint64_t size_bytes, bool small, placement place) const;
  bool open_apart();
  void release_blocks(segment piece, bool sole_copy);
  void release_slot(const segment& piece);

  arena_info info_;
  mutable short_mutex mutex_;
  std::condition_variable released_;
  space_map space_;
  std::map<std::uint64_t, slot_block> slot_blocks_;     // by offset
  std::map<slot_kind, std::set<std::uint64_t>> roomy_;  // blocks that have a free slot
  bool private_is_open_ = false;
  std::uint64_t sole_copy_bytes_ = 0, sole_copy_slot_bytes_ = 0;  // in whole blocks
  std::atomic<std::uint64_t> releases_{0};
  unsigned waiting_ = 0;
};

}  // namespace pl::store
