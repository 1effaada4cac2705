// SPDX-License-Identifier: Apache-2.0
// The open pools (every pool of the store is open) and what they hold.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <vector>

#include "store/engine/name_set.hpp"
#include "store/engine/owners.hpp"
#include "store/engine/pool_cache.hpp"
#include "store/engine/record.hpp"
#include "store/engine/types.hpp"

namespace pl::store {

struct pool_state {
  pool_state(pool_info made, pool_counts counts)
      : id(made.id),
        name(made.name),
        created_unix_ns(made.created_unix_ns),
        keys(counts.keys),
        bytes(counts.bytes),
        indexed_keys(counts.keys),
        indexed_bytes(counts.bytes),
        options_(std::make_shared<const pool_options>(made.options)) {
    note(*options_);
  }

  const pool_id id;
  const std::string name;
  const std::int64_t created_unix_ns;
  std::atomic<bool> dropped{false};
  std::atomic<bool> is_in_private_arena{false};  // its values lie in memory that no other process maps
  std::atomic<std::uint64_t> open_grants{0};
  std::atomic<std::uint64_t> keys, bytes;  // all keys and bytes, as quotas count
  // The part that is in the index; only the committer writes these.
  std::atomic<std::uint64_t> indexed_keys, indexed_bytes;
  std::shared_ptr<pool_cache> cache;  // set before the pool is known to other threads; null if it is no cache
  pool_owners held;                   // usage by owner; joined before the pool is known to other threads
  std::atomic<std::uint64_t> hits{0}, misses{0}, evicted{0}, evicted_bytes{0}, expired{0};

  std::shared_ptr<const pool_options> options() const {
    std::lock_guard lock(options_mutex_);
    return options_;
  }
  void set_options(const pool_options& next) {
    auto made = std::make_shared<const pool_options>(next);
    std::lock_guard lock(options_mutex_);
    note(*made);
    options_ = std::move(made);
  }
  // The level of a request. Every put and get calls this, so it takes no lock.
  durability level(durability asked) const noexcept {
    return asked == durability::pool_default ? level_.load(std::memory_order_relaxed) : asked;
  }
  bool has_quota() const noexcept { return has_quota_.load(std::memory_order_relaxed); }
  bool verifies_reads() const noexcept { return verifies_reads_.load(std::memory_order_relaxed); }

  // Counts a put's changes. EDQUOT, and nothing is counted, if a quota forbids them. A decrease is always allowed, and
  // so is an increase in a cache, which evicts down to its quota afterwards.
  status charge(std::int64_t more_keys, std::int64_t more_bytes);
  void refund(std::int64_t more_keys, std::int64_t more_bytes) noexcept {
    keys.fetch_sub(static_cast<std::uint64_t>(more_keys));
    bytes.fetch_sub(static_cast<std::uint64_t>(more_bytes));
  }

  pool_info info() const;
  // The key was erased or evicted, so it is no longer a name that only memory has.
  void forget_name(std::string_view key) {
    std::lock_guard lock(names_mutex);
    volatile_names.erase(key);
  }

  // Keys that only memory has, in order, for find().
  std::mutex names_mutex;
  name_set volatile_names;

 private:
  void note(const pool_options& now) noexcept {
    level_.store(now.level, std::memory_order_relaxed);
    has_quota_.store(now.quota_bytes != 0 || now.quota_keys != 0, std::memory_order_relaxed);
    verifies_reads_.store(now.verify_reads, std::memory_order_relaxed);
  }
  mutable std::mutex options_mutex_;
  std::shared_ptr<const pool_options> options_;
  std::atomic<durability> level_{durability::durable};
  std::atomic<bool> has_quota_{false}, verifies_reads_{false};
};
using pool_ref = std::shared_ptr<pool_state>;

class pools {
 public:
  // Null if there is no such pool.
  pool_ref find(pool_id id) const;
  pool_ref find(std::string_view name) const;
  std::vector<pool_info> list() const;
  // The pools that are caches, the one with the most memory first.
  std::vector<pool_ref> caches() const;
  std::size_t count() const;
  void add(pool_ref pool);
  void remove(pool_id id);

 private:
  mutable std::shared_mutex mutex_;
  std::vector<pool_ref> caches_;
  std::map<pool_id, pool_ref> by_id_;
  std::map<std::string, pool_ref, std::less<>> by_name_;
};

}  // namespace pl::store
