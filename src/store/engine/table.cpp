// SPDX-License-Identifier: Apache-2.0
#include "store/engine/table.hpp"

namespace pl::store {

entry& table::shard::need(std::string_view key) {
  entry* found = find(key);
  return found != nullptr ? *found : add(key);
}

entry& table::shard::add(std::string_view key) {
  const auto added = entries.try_emplace(std::string(key)).first;
  added->second.key = &added->first;
  heap_bytes->fetch_add(heap_bytes_of(key), std::memory_order_relaxed);
  return added->second;
}

namespace {

// Tells the cache whose value the entry has, or had.
void tell_cache(entry& key_entry, const value* next) {
  pool_cache* const owner = next != nullptr ? next->cache.get() : nullptr;
  if (key_entry.cached && owner == nullptr) {
    key_entry.cached->owner->remove(*key_entry.cached);
    key_entry.cached.reset();
  }
  if (owner == nullptr) return;
  if (!key_entry.cached) {
    key_entry.cached = std::make_unique<cache_entry>();
    key_entry.cached->key = key_entry.key;
    key_entry.cached->owner = owner;
  }
  owner->place(*key_entry.cached, next->length_bytes, !next->in_memory(), next->expires_ns);
}

}  // namespace

void table::shard::set_current(entry& key_entry, value_ref next) {
  tell_cache(key_entry, next.get());
  const bool list_it = next && !next->cache && !next->segments.empty();
  const bool small = list_it && next->is_lasting && next->length_bytes <= arena::kSlotBytes;
  if (key_entry.listed && (!list_it || small != key_entry.listed_small)) {
    list_of(key_entry.listed_small).remove(key_entry);
    key_entry.listed = false;
  }
  if (key_entry.listed) {
    touch(key_entry);
  } else if (list_it) {
    list_of(small).add(key_entry);
    key_entry.listed = true;
    key_entry.listed_small = small;
  }
  key_entry.current = std::move(next);
}

void table::shard::drop_if_empty(entry& key_entry) {
  if (key_entry.current || key_entry.committing || key_entry.loading) return;
  heap_bytes->fetch_sub(heap_bytes_of(*key_entry.key), std::memory_order_relaxed);
  entries.erase(entries.find(*key_entry.key));
}

}  // namespace pl::store
