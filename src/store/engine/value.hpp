// SPDX-License-Identifier: Apache-2.0
// One version of a key's value, in memory or on disk. Immutable once others can see it (but for its user flags), shared by
// the table, pins, readers and puts under way. The last reference frees its memory, and its extents if no record owns
// them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "store/engine/arena.hpp"
#include "store/engine/extents.hpp"
#include "store/engine/pool_cache.hpp"
#include "store/engine/segment_list.hpp"
#include "store/engine/types.hpp"

namespace pl::store {

struct value {
  value(arena& m, extents& d) : memory(m), space(d) {}
  ~value() {
    memory.release(segments, is_lasting);
    if (owns_extents) space.release(on_disk.take());
  }
  value(const value&) = delete;
  value& operator=(const value&) = delete;

  bool in_memory() const noexcept { return length_bytes == 0 || !segments.empty(); }
  // Spans over the segments, in order.
  std::vector<std::span<std::byte>> spans() const {
    std::vector<std::span<std::byte>> made;
    made.reserve(segments.size());
    for (const segment& piece : segments) made.push_back(memory.span_of(piece));
    return made;
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

  arena& memory;
  extents& space;
  segment_list segments;      // in the arena; empty: on disk only
  rare_segments on_disk;      // whole blocks
  bool owns_extents = false;  // else a record of the index does
  bool is_lasting = false;    // its memory is counted so (arena.hpp)
  durability level = durability::volatile_;
  owner_id owner = 0;
  version_t version = 0;
  std::uint64_t length_bytes = 0;
  std::uint32_t crc = 0;
  std::atomic<std::uint32_t> user_flags{0};
  std::int64_t written_unix_ns = 0;
  std::shared_ptr<pool_cache> cache;  // of its pool, if that is one
  std::uint64_t expires_ns = 0;       // monotonic; 0: never
  // What a cache holds counts for nobody: its share bounds it, and its policy says what leaves.
  void join_owner(owner_id writer) noexcept { owner = cache ? 0 : writer; }
  // Lives as long as `ttl_ms` says, or else the pool. Nothing for a pool that is no cache.
  void join_cache(const std::shared_ptr<pool_cache>& of_pool, std::uint64_t ttl_ms) {
    cache = of_pool;
    if (cache) expires_ns = cache->expiry_of(ttl_ms);
  }
  bool has_expired(std::uint64_t now_ns) const noexcept { return expires_ns != 0 && expires_ns <= now_ns; }
};
using value_ref = std::shared_ptr<value>;

}  // namespace pl::store
