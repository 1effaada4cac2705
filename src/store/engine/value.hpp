// SPDX-License-Identifier: Apache-2.0
// One version of a key's value, in memory or on disk. Immutable once others can see it (except for its user flags), and
// shared by the table, pins, readers and puts in progress. The last reference frees its memory, and its extents unless
// a record owns them.
//
// There are as many as there are keys in memory, so one is small: 56 bytes in a heap block of 64. What only some values
// have (several pieces, extents, a cache) lies in a separate block, `rare`.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "store/engine/arena.hpp"
#include "store/engine/extents.hpp"
#include "store/engine/pool_cache.hpp"
#include "store/engine/segment_list.hpp"
#include "store/engine/types.hpp"

namespace pl::store {

class value_ref;

// Where values give back their memory and extents. Outlives them.
struct value_storage {
  arena& memory;
  extents& space;
};

class value {
 public:
  // Creates a value of this length without a place.
  static value_ref make(const value_storage& home, std::uint64_t length_bytes);
  value(const value_storage& home, std::uint64_t length)
      : home_(&home), length_bytes(length & kLengthMask), shape_(nowhere) {}
  ~value() {
    const segment_view pieces = segments();
    home_->memory.release(pieces.span(), is_sole_copy_held);
    if (shape_ != has_rare) return;
    if (owns_extents) home_->space.release(rare_->on_disk.take());
    delete rare_;
  }
  value(const value&) = delete;
  value& operator=(const value&) = delete;

  bool in_memory() const noexcept { return length_bytes == 0 || !segments().empty(); }
  // Pieces in the arena; empty if the value is only on disk.
  segment_view segments() const noexcept {
    if (shape_ == one_piece) return segment_view(segment{offset_, length_bytes});
    return shape_ == has_rare ? segment_view(rare_->segments) : segment_view();
  }
  // Spans over the segments, in order.
  std::vector<std::span<std::byte>> spans() const {
    const segment_view pieces = segments();
    std::vector<std::span<std::byte>> made;
    made.reserve(pieces.size());
    for (const segment& piece : pieces) made.push_back(home_->memory.span_of(piece));
    return made;
  }
  // Whole blocks on disk.
  const std::vector<segment>& on_disk() const noexcept {
    return shape_ == has_rare ? rare_->on_disk.get() : rare_segments::none();
  }
  pool_cache* cache() const noexcept { return shape_ == has_rare ? rare_->cache.get() : nullptr; }
  // On the monotonic clock; 0: never.
  std::uint64_t expires_ns() const noexcept { return shape_ == has_rare ? rare_->expires_ns : 0; }
  bool has_expired(std::uint64_t now_ns) const noexcept {
    const std::uint64_t end = expires_ns();
    return end != 0 && end <= now_ns;
  }
  value_info info() const {
    return value_info{version,
                      length_bytes,
                      crc,
                      user_flags.load(std::memory_order_relaxed),
                      written_unix_ns,
                      level,
                      in_memory() ? tier::memory : tier::disk,
                      owner};
  }

  // ---- For the creator, while nobody else has a reference
  // `pieces` add up to the length, in whole blocks.
  void set_segments(std::span<const segment> pieces);
  void set_on_disk(std::vector<segment> pieces) { need_rare().on_disk = std::move(pieces); }
  // Call before another thread sets the extents while this one reads the pieces in memory.
  void expect_extents() { (void)need_rare(); }
  void append_on_disk(const std::vector<segment>& pieces) { need_rare().on_disk.append(pieces); }
  std::vector<segment> take_on_disk() { return shape_ == has_rare ? rare_->on_disk.take() : std::vector<segment>(); }
  // Sets the lifetime: `ttl_ms`, or else the pool's. Does nothing for a pool that is no cache.
  void join_cache(const std::shared_ptr<pool_cache>& of_pool, std::uint64_t ttl_ms) {
    if (!of_pool) return;
    need_rare().cache = of_pool;
    rare_->expires_ns = of_pool->expiry_of(ttl_ms);
  }
  // A cache's values count for nobody: its share limits it, and its policy decides what leaves.
  void join_owner(owner_id writer) noexcept { owner = cache() != nullptr ? 0 : static_cast<std::uint16_t>(writer); }
  // For the last holder: adds the memory to what is released together.
  void leave_memory(std::vector<arena::released_piece>& released) {
    const segment_view pieces = segments();
    for (const segment& piece : pieces) released.push_back({piece, is_sole_copy_held});
    if (shape_ == has_rare) rare_->segments = std::vector<segment>();
    else shape_ = nowhere;
  }
  // Takes what all copies of this version share, wherever they lie.
  void take_identity(const value& source);

 private:
  friend class value_ref;
  enum shape : unsigned { nowhere, one_piece, has_rare };
  struct rare {
    segment_list segments;
    rare_segments on_disk;
    std::shared_ptr<pool_cache> cache;  // of its pool, if that is a cache
    std::uint64_t expires_ns = 0;
  };
  rare& need_rare();
  static constexpr std::uint64_t kLengthMask = (std::uint64_t{1} << 40) - 1;
  static_assert(kMaxValueBytes <= kLengthMask);

  const value_storage* home_;
  union {
    std::uint64_t offset_ = 0;  // of the only piece
    rare* rare_;
  };

 public:
  std::uint64_t length_bytes : 40;  // never changed

 private:
  std::uint64_t shape_ : 2;

 public:
  version_t version = 0;
  std::int64_t written_unix_ns = 0;
  std::uint32_t crc = 0;
  std::atomic<std::uint32_t> user_flags{0};

 private:
  std::atomic<std::uint32_t> references_{0};

 public:
  // A byte of its own, because another thread writes it than the members after it.
  bool owns_extents = false;           // otherwise a record of the index owns them
  bool is_sole_copy_held : 1 = false;  // its memory counts as a sole copy (arena.hpp)
  durability level : 4 = durability::volatile_;
  std::uint16_t owner = 0;  // an owner_id: who wrote it
};
static_assert(sizeof(value) <= 56, "a heap block has 64 bytes with its head");

// A counted reference like std::shared_ptr, of half its size and without a control block. Null by default.
class value_ref {
 public:
  value_ref() = default;
  value_ref(std::nullptr_t) {}
  explicit value_ref(value* one) noexcept : one_(one) { hold(); }
  value_ref(const value_ref& other) noexcept : one_(other.one_) { hold(); }
  value_ref(value_ref&& other) noexcept : one_(std::exchange(other.one_, nullptr)) {}
  value_ref& operator=(value_ref other) noexcept {
    std::swap(one_, other.one_);
    return *this;
  }
  ~value_ref() { reset(); }
  void reset() noexcept {
    value* const gone = std::exchange(one_, nullptr);
    if (gone != nullptr && gone->references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete gone;
  }
  // Like reset() for each, taking the arena's lock once.
  static void reset_many(std::span<value_ref> many);
  value* get() const noexcept { return one_; }
  value& operator*() const noexcept { return *one_; }
  value* operator->() const noexcept { return one_; }
  explicit operator bool() const noexcept { return one_ != nullptr; }
  // May be out of date, unless the caller holds off everybody who makes references.
  std::uint32_t use_count() const noexcept {
    return one_ == nullptr ? 0 : one_->references_.load(std::memory_order_acquire);
  }
  friend bool operator==(const value_ref& a, const value_ref& b) noexcept { return a.one_ == b.one_; }

 private:
  void hold() noexcept {
    if (one_ != nullptr) one_->references_.fetch_add(1, std::memory_order_relaxed);
  }
  value* one_ = nullptr;
};

inline value_ref value::make(const value_storage& home, std::uint64_t length_bytes) {
  return value_ref(new value(home, length_bytes));
}

}  // namespace pl::store
