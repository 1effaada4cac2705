// SPDX-License-Identifier: Apache-2.0
// A pool that is a cache: what it may hold in memory and on disk, which values leave first, when they expire, and its
// counters. The table reports every value that comes and goes; engine_cache.cpp takes victims.
//
// Thread-safe. Its lock is taken while a table shard's lock is held, so the table is never touched under it: take()
// returns a name, and whoever then holds the shard's lock asks whether the value is still the one taken.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "store/engine/eviction.hpp"
#include "store/engine/types.hpp"

namespace pl::store {

class pool_cache;

// The part of a table entry that belongs to the cache.
struct cache_entry : cached_value {
  bool on_disk = false;
  pool_cache* owner = nullptr;  // outlives the entry's value
  std::uint64_t expires_ns = 0;
};

class pool_cache {
 public:
  // `memory_bytes` applies if terms.memory_bytes is 0.
  pool_cache(const cache_terms& terms, std::uint64_t memory_bytes);

  cache_terms terms() const;
  // Does not change the eviction policy.
  void set_terms(const cache_terms& next);
  std::uint64_t memory_limit() const noexcept { return memory_limit_.load(std::memory_order_relaxed); }
  std::uint64_t disk_limit() const noexcept { return disk_limit_.load(std::memory_order_relaxed); }
  // When a put with `ttl_ms` (0: the pool's) expires; 0: never.
  std::uint64_t expiry_of(std::uint64_t ttl_ms) const noexcept;

  // How much memory, or disk, a value takes.
  static std::uint64_t memory_of(std::uint64_t length_bytes) noexcept;
  static std::uint64_t disk_of(std::uint64_t length_bytes) noexcept;

  // ---- Called by the table, with the shard's lock held
  // The entry's value is this one from now on.
  void place(cache_entry& one, std::uint64_t length_bytes, bool on_disk, std::uint64_t expires_ns);
  void used(cache_entry& one);
  void remove(cache_entry& one);

  // ---- Called by whoever makes room
  struct candidate {
    std::string full;
    const cache_entry* entry = nullptr;  // only a name until is_taken()
  };
  std::optional<candidate> take(bool from_disk);
  // Takes at most `limit` expired values.
  std::vector<candidate> take_expired(std::uint64_t now_ns, std::size_t limit);
  // Whether the entry was taken and is unchanged since. Precondition: the shard's lock is held.
  bool is_taken(const cache_entry& one) const;
  void put_back(cache_entry& one);

  std::uint64_t memory_bytes() const noexcept { return memory_bytes_.load(std::memory_order_relaxed); }
  std::uint64_t disk_bytes() const noexcept { return disk_bytes_.load(std::memory_order_relaxed); }
  std::size_t count(bool on_disk) const;
  bool has_expired(std::uint64_t now_ns) const noexcept { return next_expiry_ns_.load(std::memory_order_relaxed) <= now_ns; }

  std::atomic<std::uint64_t> spilled{0};  // values moved to disk

 private:
  eviction_policy& tier_of(const cache_entry& one) const { return one.on_disk ? *on_disk_ : *in_memory_; }
  void detach(cache_entry& one);
  void count_bytes();

  mutable std::mutex mutex_;
  cache_terms terms_;
  const std::uint64_t default_memory_bytes_;
  std::atomic<std::uint64_t> memory_limit_{0}, disk_limit_{0}, ttl_ms_{0};
  const std::unique_ptr<eviction_policy> in_memory_, on_disk_;
  std::set<std::pair<std::uint64_t, cache_entry*>> expiring_;
  std::atomic<std::uint64_t> next_expiry_ns_{~std::uint64_t{0}}, memory_bytes_{0}, disk_bytes_{0};
};

}  // namespace pl::store
