// SPDX-License-Identifier: Apache-2.0
// The memory that values lie in: one memfd, mapped once, cut into pieces that can be handed to other processes, and as much
// memory again that no other process ever sees. A place is used in one of the two at a time: [0, size) names the memfd,
// [size, 2 * size) the same places apart. Both together hold no more than the memory tier's size.
// Values of more than kSlotBytes get whole blocks; smaller ones share a block with others of their size and kind.
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

// Where a value is placed, and for which kind of request.
struct placement {
  bool apart = false;     // in memory that no other process maps
  bool lasting = false;   // memory may have the only copy: the value is written before it leaves memory
  bool for_read = false;  // read from disk for a reader
};

class arena {
 public:
  static constexpr std::uint64_t kSmallestSlotBytes = 64;
  static constexpr std::uint64_t kSlotBytes = 2048;  // largest

  static result<std::unique_ptr<arena>> make(std::uint64_t size_bytes, std::uint64_t chunk_bytes, bool huge_pages);
  ~arena();
  arena(const arena&) = delete;
  arena& operator=(const arena&) = delete;

  const arena_info& info() const noexcept { return info_; }

  // Pieces whose sizes add up to `size_bytes` (what rounding adds behind the last is zeroed). Nothing if there is no room;
  // the caller makes some or waits. Thread-safe, as are the others.
  std::optional<std::vector<segment>> allocate(std::uint64_t size_bytes, placement place = {});
  void release(std::span<const segment> pieces, bool lasting = false) noexcept;
  // A piece for each of these lengths, under one lock; what is longer than a slot lies side by side where there is room for
  // that. A piece has no bytes where no single one was found (allocate() may find several), or where none are wanted.
  void allocate_many(std::span<const std::uint64_t> sizes, placement place, std::span<segment> pieces);
  struct released_piece {
    segment piece;
    bool lasting = false;
  };
  // Under one lock; neighbours become one free range first. Sorts the pieces.
  void release_many(std::span<released_piece> pieces) noexcept;
  // Of pieces that turn out to be lasting. False: there are too many of those.
  bool make_lasting(std::span<const segment> pieces) noexcept;
  // Whether it is the number of lasting values that refuses so many bytes more.
  bool is_lasting_full(std::uint64_t size_bytes) const;
  bool is_apart(std::span<const segment> pieces) const noexcept {
    return !pieces.empty() && pieces.front().offset_bytes >= info_.size_bytes;
  }
  // Waits until something was released after `seen` (a value of releases()), or the deadline. False: the deadline.
  bool wait_for_release(std::uint64_t seen, deadline_t deadline);
  std::uint64_t releases() const noexcept { return releases_.load(std::memory_order_acquire); }
  std::uint64_t used_bytes() const;

  std::span<std::byte> span_of(const segment& piece) const noexcept {
    return {info_.base + piece.offset_bytes, piece.size_bytes};
  }

 private:
  struct slot_block {  // a block that is cut into slots
    std::uint64_t slot_bytes = 0;
    std::uint64_t free = 0;  // bit i: slot i
    bool lasting = false;
  };
  struct slot_kind {
    std::uint64_t slot_bytes;
    bool apart, lasting;
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
  void release_blocks(segment piece, bool lasting);
  void release_slot(const segment& piece);

  arena_info info_;
  mutable short_mutex mutex_;
  std::condition_variable released_;
  space_map space_;
  std::map<std::uint64_t, slot_block> slot_blocks_;     // by offset
  std::map<slot_kind, std::set<std::uint64_t>> roomy_;  // blocks with a free slot
  bool apart_is_open_ = false;
  std::uint64_t lasting_bytes_ = 0, lasting_slot_bytes_ = 0;  // blocks
  std::atomic<std::uint64_t> releases_{0};
  unsigned waiting_ = 0;
};

}  // namespace pl::store
