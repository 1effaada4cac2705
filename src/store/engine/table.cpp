// SPDX-License-Identifier: Apache-2.0
#include "store/engine/table.hpp"

namespace pl::store {

entry& table::shard::need(std::string_view key) {
  entry* found = find(key);
  return found != nullptr ? *found : add(key);
}

entry& table::shard::add(std::string_view key, std::size_t hash) {
  entry& made = entries.add(key, hash);
  heap_bytes->fetch_add(heap_bytes_of(key), std::memory_order_relaxed);
  return made;
}

namespace {

// Reports to the cache of the value that the entry has, or had. Precondition: the entry is in no list, or `next`
// belongs to no cache.
void tell_cache(entry& key_entry, const value* next) {
  pool_cache* const owner = next != nullptr ? next->cache() : nullptr;
  if (cache_entry* const cached = key_entry.cached(); cached != nullptr && owner == nullptr) {
    cached->owner->remove(*cached);
    key_entry.set_cached(nullptr);
  }
  if (owner == nullptr) return;
  if (key_entry.cached() == nullptr) {
    auto made = std::make_unique<cache_entry>();
    made->set_key(key_entry.key());
    made->owner = owner;
    key_entry.set_cached(std::move(made));
  }
  owner->place(*key_entry.cached(), next->length_bytes, !next->in_memory(), next->expires_ns());
}

}  // namespace

value_ref table::shard::set_current(entry& key_entry, value_ref next) {
  const bool list_it = next && next->cache() == nullptr && !next->segments().empty();
  const bool small = list_it && next->is_sole_copy_held && next->length_bytes <= arena::kSlotBytes;
  if (key_entry.listed && (!list_it || small != key_entry.listed_small)) {
    list_of(key_entry.listed_small).remove(key_entry);
    key_entry.listed = false;
  }
  tell_cache(key_entry, next.get());
  if (key_entry.listed) {
    touch(key_entry);
  } else if (list_it) {
    list_of(small).add(key_entry);
    key_entry.listed = true;
    key_entry.listed_small = small;
  }
  return std::exchange(key_entry.current, std::move(next));
}

std::shared_ptr<load> table::shard::load_of(const entry& key_entry) const {
  const auto found = key_entry.loading ? loads.find(&key_entry) : loads.end();
  return found == loads.end() ? nullptr : found->second;
}

void table::shard::set_load(entry& key_entry, std::shared_ptr<load> next) {
  if (next == nullptr && !key_entry.loading) return;
  key_entry.loading = next != nullptr;
  if (next != nullptr) loads[&key_entry] = std::move(next);
  else loads.erase(&key_entry);
}

void table::shard::drop_if_empty(entry& key_entry) {
  if (key_entry.current || key_entry.committing || key_entry.loading) return;
  heap_bytes->fetch_sub(heap_bytes_of(key_entry.key()), std::memory_order_relaxed);
  entries.erase(key_entry);
}

}  // namespace pl::store
