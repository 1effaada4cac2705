// SPDX-License-Identifier: Apache-2.0
// Pools that are caches: which values leave memory, when, and where they go. Values that somebody reads, has pinned or
// is changing stay.
#include <algorithm>
#include <cerrno>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "store/engine/engine.hpp"
#include "store/engine/engine_impl.hpp"
#include "store/engine/record.hpp"

namespace pl::store {
namespace {

// Number of victims examined at a time; those that go to disk are written together.
constexpr std::size_t kVictimsAtATime = 64;
constexpr std::size_t kExpiredAtATime = 64;
constexpr std::uint64_t kKeptPart = 4;  // the last quarter of a cache's share is evicted only when nothing else can be

}  // namespace

std::shared_ptr<pool_cache> engine::impl::cache_for(const pool_info& pool) const {
  const auto terms = options.cache_of ? options.cache_of(pool) : std::nullopt;
  if (!terms) return nullptr;
  // The arena is rounded up to whole chunks.
  const std::uint64_t arena_bytes =
      (options.arena_bytes + options.chunk_bytes - 1) / options.chunk_bytes * options.chunk_bytes;
  return std::make_shared<pool_cache>(*terms, arena_bytes / 4 * 3);
}

status engine::impl::check_terms(const pool_info& pool) const {
  const auto terms = options.cache_of ? options.cache_of(pool) : std::nullopt;
  if (!terms) return {};
  if (pool.options.level != durability::volatile_)
    return failure{
        EINVAL, "store: pool " + shown(pool.name) + ": a cache's values may go at any time, so its durability is volatile"};
  if (terms->memory_bytes != 0 && terms->memory_bytes < kBlockBytes)
    return failure{
        EINVAL, format("store: pool %s: a cache has at least %zu bytes of memory", shown(pool.name).c_str(), kBlockBytes)};
  if (terms->ttl_ms > kMaxTtlMs)
    return failure{EINVAL, "store: pool " + shown(pool.name) + ": a time to live is at most ten years; 0 means no limit"};
  return {};
}

status engine::impl::check_cached_put(const pool_state& pool, durability level, std::uint64_t ttl_ms,
                                      std::uint64_t length_bytes) const {
  if (!pool.cache) {
    if (ttl_ms == 0) return {};
    return failure{EINVAL, "store: pool " + shown(pool.name) +
                               " is not a cache, and its values live until they are erased: put without a time to live, or "
                               "into a pool that was made as a cache"};
  }
  if (level != durability::volatile_)
    return failure{EINVAL, "store: pool " + shown(pool.name) +
                               " is a cache, whose values may go at any time: put at its own durability, or into "
                               "another pool"};
  if (ttl_ms > kMaxTtlMs) return failure{EINVAL, "store: a time to live is at most ten years"};
  if (pool_cache::memory_of(length_bytes) <= pool.cache->memory_limit()) return {};
  return failure{EFBIG,
                 format("store: pool %s: %llu bytes are more than its share of memory (%s)", shown(pool.name).c_str(),
                        static_cast<unsigned long long>(length_bytes), format_size(pool.cache->memory_limit()).c_str())};
}

// Holds the value behind the name if it can leave. A value that cannot leave goes back to its queue.
std::optional<engine::impl::victim> engine::impl::hold_taken(pool_state& pool, const pool_cache::candidate& taken) {
  table::shard& shard = values->shard_of(taken.full);
  const std::lock_guard lock(shard.mutex);
  entry* const key_entry = shard.find(taken.full);
  // It was erased or replaced meanwhile; comparing the address alone would miss that.
  if (key_entry == nullptr || key_entry->cached() != taken.entry || key_entry->cached() == nullptr ||
      !pool.cache->is_taken(*key_entry->cached()))
    return std::nullopt;
  if (key_entry->committing || key_entry->loading || key_entry->current.use_count() != 1) {
    pool.cache->put_back(*key_entry->cached());
    return std::nullopt;
  }
  return victim{taken.full, key_entry->current};
}

// Returns the number of bytes freed.
std::uint64_t engine::impl::drop_taken(pool_state& pool, const pool_cache::candidate& taken,
                                       std::atomic<std::uint64_t>& counter) {
  value_ref gone;  // released after the lock
  table::shard& shard = values->shard_of(taken.full);
  const std::lock_guard lock(shard.mutex);
  entry* const key_entry = shard.find(taken.full);
  if (key_entry == nullptr || key_entry->cached() != taken.entry || key_entry->cached() == nullptr ||
      !pool.cache->is_taken(*key_entry->cached()))
    return 0;
  if (key_entry->committing || key_entry->loading || key_entry->current.use_count() != 1) {
    pool.cache->put_back(*key_entry->cached());
    return 0;
  }
  gone = key_entry->current;
  const std::uint64_t bytes = gone->length_bytes;
  const std::uint64_t freed = key_entry->cached()->bytes;
  shard.set_current(*key_entry, nullptr);
  key_entry->is_volatile = false;
  shard.drop_if_empty(*key_entry);
  pool.refund(1, static_cast<std::int64_t>(bytes));
  pool.forget_name(key_of(taken.full));
  count(counter);
  tell(&counter == &pool.evicted ? change::evicted : change::expired, taken.full, gone->version);
  if (&counter == &pool.evicted) {
    count(pool.evicted_bytes, bytes);
    count(state.evictions);
    count(state.evicted_bytes, bytes);
  }
  return freed;
}

// Writes what fits on the disk and drops the rest.
std::uint64_t engine::impl::spill_cached(pool_state& pool, const std::vector<pool_cache::candidate>& taken) {
  std::vector<victim> leaving;
  std::vector<pool_cache::candidate> names;
  std::uint64_t freed = 0;
  for (const pool_cache::candidate& one : taken) {
    auto held = hold_taken(pool, one);
    if (!held) continue;
    if (held->stored->length_bytes == 0) {  // a value of no bytes has nothing to write
      held.reset();
      freed += drop_taken(pool, one, pool.evicted);
      continue;
    }
    leaving.push_back(*std::move(held));
    names.push_back(one);
  }
  if (!leaving.empty()) freed += spill(std::move(leaving));
  for (const pool_cache::candidate& one : names) {
    freed += drop_taken(pool, one, pool.evicted);  // nothing is lost: the value is on disk now
  }
  while (pool.cache->disk_bytes() > pool.cache->disk_limit()) {
    const auto oldest = pool.cache->take(true);
    if (!oldest || drop_taken(pool, *oldest, pool.evicted) == 0) break;
  }
  return freed;
}

std::uint64_t engine::impl::evict_cached(pool_state& pool, std::uint64_t bytes) {
  pool_cache& cache = *pool.cache;
  std::uint64_t freed = 0;
  // Limited to the current count: values in use go back to their queue, and the loop would take them for ever.
  for (std::size_t left = cache.count(false); freed < bytes && left > 0;) {
    std::vector<pool_cache::candidate> taken;
    std::uint64_t taken_bytes = 0;
    const bool spills = cache.disk_limit() != 0;
    while (left > 0 && taken.size() < (spills ? kVictimsAtATime : 1)) {
      auto one = cache.take(false);
      if (!one) break;
      --left;
      taken.push_back(*std::move(one));
      if (spills && (taken_bytes += kBlockBytes) >= bytes) break;
    }
    if (taken.empty()) break;
    if (spills) freed += spill_cached(pool, taken);
    else freed += drop_taken(pool, taken.front(), pool.evicted);
  }
  return freed;
}

void engine::impl::drop_expired(pool_state& pool) {
  const std::uint64_t now = monotonic_ns();
  if (!pool.cache->has_expired(now)) return;
  for (const pool_cache::candidate& one : pool.cache->take_expired(now, kExpiredAtATime))
    (void)drop_taken(pool, one, pool.expired);
}

bool engine::impl::drop_if_expired(table::shard& shard, entry* key_entry, pool_state& pool) {
  if (key_entry == nullptr || key_entry->cached() == nullptr || !key_entry->current || key_entry->current->expires_ns() == 0)
    return false;
  if (key_entry->committing || key_entry->loading || !key_entry->current->has_expired(monotonic_ns())) return false;
  const std::string full(key_entry->key());
  const version_t version = key_entry->current->version;
  pool.refund(1, static_cast<std::int64_t>(key_entry->current->length_bytes));
  shard.set_current(*key_entry, nullptr);
  key_entry->is_volatile = false;
  shard.drop_if_empty(*key_entry);
  pool.forget_name(key_of(full));
  count(pool.expired);
  tell(change::expired, full, version);
  return true;
}

void engine::impl::tell(change kind, std::string_view full, version_t version, std::uint64_t length_bytes) const {
  if (options.on_change) options.on_change({pool_of(full), kind, key_of(full), version, length_bytes});
}

void engine::impl::trim_cache(pool_state& pool, std::uint64_t length_bytes) {
  if (!pool.cache) return;
  pool_cache& cache = *pool.cache;
  drop_expired(pool);
  const std::uint64_t more = length_bytes == 0 ? 0 : pool_cache::memory_of(length_bytes);
  const std::uint64_t wanted = cache.memory_bytes() + more;
  if (wanted > cache.memory_limit()) (void)evict_cached(pool, wanted - cache.memory_limit());
  // A cache keeps its quotas by evicting values, those on disk first.
  const auto limits = pool.options();
  const auto is_over = [&] {
    return (limits->quota_bytes != 0 && pool.bytes > limits->quota_bytes) ||
           (limits->quota_keys != 0 && pool.keys > limits->quota_keys);
  };
  for (std::size_t left = cache.count(true) + cache.count(false); left > 0 && is_over(); --left) {
    auto one = cache.take(true);
    if (!one) one = cache.take(false);
    if (!one) break;
    (void)drop_taken(pool, *one, pool.evicted);
  }
}

// Extents of caches are the first to go when others need the room, because a cache may lose its values at any time.
bool engine::impl::give_up_cached_extents(std::uint64_t bytes) {
  std::uint64_t freed = 0;
  for (const pool_ref& pool : known.caches()) {
    drop_expired(*pool);
    for (std::size_t left = pool->cache->count(true); freed < bytes && left > 0; --left) {
      const auto oldest = pool->cache->take(true);
      if (!oldest) break;
      freed += drop_taken(*pool, *oldest, pool->evicted);
    }
  }
  return freed != 0;
}

bool engine::impl::evict_caches(std::uint64_t bytes, bool to_the_last) {
  std::uint64_t freed = 0;
  for (const pool_ref& pool : known.caches()) {
    drop_expired(*pool);
    const std::uint64_t kept = to_the_last ? 0 : pool->cache->memory_limit() / kKeptPart;
    const std::uint64_t has = pool->cache->memory_bytes();
    if (has > kept && freed < bytes) freed += evict_cached(*pool, std::min(bytes - freed, has - kept));
  }
  return freed != 0;
}

}  // namespace pl::store
