// SPDX-License-Identifier: Apache-2.0
#include "store/engine/table.hpp"

namespace pl::store {

entry& table::shard::need(std::string_view key) {
  entry* found = find(key);
  return found != nullptr ? *found : add(key);
}

entry& table::shard::add(std::string_view key) {
  const auto at = entries.try_emplace(std::string(key)).first;
  at->second.key = &at->first;
  return at->second;
}

void table::shard::set_current(entry& at, value_ref next) {
  const bool list_it = next && !next->segments.empty();
  const bool small = list_it && next->is_lasting && next->length_bytes <= arena::kSlotBytes;
  if (at.listed && (!list_it || small != at.listed_small)) {
    list_of(at.listed_small).erase(at.recent);
    at.listed = false;
  }
  if (at.listed) {
    touch(at);
  } else if (list_it) {
    auto& mine = list_of(small);
    at.recent = mine.insert(mine.begin(), &at);
    at.listed = true;
    at.listed_small = small;
  }
  at.current = std::move(next);
}

void table::shard::drop_if_empty(entry& at) {
  if (at.current || at.committing || at.loading) return;
  entries.erase(entries.find(*at.key));
}

}  // namespace pl::store
