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
  return added->second;
}

void table::shard::set_current(entry& key_entry, value_ref next) {
  const bool list_it = next && !next->segments.empty();
  const bool small = list_it && next->is_lasting && next->length_bytes <= arena::kSlotBytes;
  if (key_entry.listed && (!list_it || small != key_entry.listed_small)) {
    list_of(key_entry.listed_small).erase(key_entry.recent);
    key_entry.listed = false;
  }
  if (key_entry.listed) {
    touch(key_entry);
  } else if (list_it) {
    auto& mine = list_of(small);
    key_entry.recent = mine.insert(mine.begin(), &key_entry);
    key_entry.listed = true;
    key_entry.listed_small = small;
  }
  key_entry.current = std::move(next);
}

void table::shard::drop_if_empty(entry& key_entry) {
  if (key_entry.current || key_entry.committing || key_entry.loading) return;
  entries.erase(entries.find(*key_entry.key));
}

}  // namespace pl::store
