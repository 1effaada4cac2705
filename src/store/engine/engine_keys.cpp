// SPDX-License-Identifier: Apache-2.0
// Memory that keys take beside their values: a table entry for each key whose value is volatile or in memory. Values of
// no bytes take nothing from the arena, and a spilled volatile value keeps its key in memory, so keys have a limit of
// their own.
#include <cerrno>

#include "base/memory_limit.hpp"
#include "base/text.hpp"
#include "store/engine/engine_impl.hpp"
#include "store/engine/record.hpp"

namespace pl::store {
std::uint64_t default_key_memory_bytes() {
  constexpr std::uint64_t kUnknown = std::uint64_t{4} << 30;
  const std::uint64_t bytes = usable_memory().bytes;
  return (bytes == UINT64_MAX ? kUnknown : bytes) / 4;
}

status engine::impl::make_key_room(const commit_unit& unit) {
  const std::uint64_t limit = options.key_memory_bytes;
  std::uint64_t more = 0;
  for (const operation& op : unit.operations)
    if (op.type == operation::kind::put) more += table::heap_bytes_of(op.full);
  if (more == 0 || values->heap_bytes() + more <= limit) return {};
  trim_keys(more > limit ? 0 : limit - more);
  // The key of a durable value is in the index, so its entry may leave at any time.
  if (values->heap_bytes() + more <= limit || unit.level != durability::volatile_) return {};
  const bool all_known = std::all_of(unit.operations.begin(), unit.operations.end(), [&](const operation& op) {
    table::shard& shard = values->shard_of(op.full);
    const std::lock_guard lock(shard.mutex);
    return shard.find(op.full) != nullptr;
  });
  if (all_known) return {};  // no new key is added
  return failure{ENOSPC, format("store: the keys of volatile values take %s of memory already, of %s: erase some, or put "
                                "durable values (key_memory_bytes)",
                                format_size(values->heap_bytes()).c_str(), format_size(limit).c_str())};
}

// Drops entries until all take no more than `limit`: first those of caches, then those that the index knows.
void engine::impl::trim_keys(std::uint64_t limit) {
  for (const pool_ref& pool : known.caches()) {
    drop_expired(*pool);
    for (const bool on_disk : {true, false})
      for (std::size_t left = pool->cache->count(on_disk); left > 0 && values->heap_bytes() > limit; --left) {
        const auto one = pool->cache->take(on_disk);
        if (!one) break;
        (void)drop_taken(*pool, *one, pool->evicted);
      }
  }
  for (std::size_t i = 0; i < table::kShards && values->heap_bytes() > limit; ++i)
    forget_indexed(values->shard_at(evict_next.fetch_add(1, std::memory_order_relaxed)), limit);
}

void engine::impl::forget_indexed(table::shard& shard, std::uint64_t limit) {
  constexpr int kMaxVisits = 1024;  // bounded because the visit holds the shard's lock
  std::vector<value_ref> gone;      // released after the lock
  const std::lock_guard lock(shard.mutex);
  entry* next = shard.recent.last();
  for (int visited = 0; visited < kMaxVisits && next != nullptr && values->heap_bytes() > limit; ++visited) {
    entry& one = *std::exchange(next, recent_list::newer(*next));
    if (one.is_volatile || one.committing || one.loading || one.current.use_count() != 1) continue;
    gone.push_back(one.current);
    shard.set_current(one, nullptr);
    shard.drop_if_empty(one);
  }
}

}  // namespace pl::store
