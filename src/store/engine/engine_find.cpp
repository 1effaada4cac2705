// SPDX-License-Identifier: Apache-2.0
// Finds keys in order by merging those of the index with those that only memory knows.
#include <algorithm>
#include <map>
#include <optional>

#include "store/engine/engine.hpp"
#include "store/engine/engine_impl.hpp"
#include "store/engine/key_pattern.hpp"
#include "store/engine/record.hpp"

namespace pl::store {
namespace {

// Returns the least key greater than all that start with `prefix`, or an empty one if there is none.
std::string behind(std::string prefix) {
  while (!prefix.empty() && prefix.back() == '\xff') prefix.pop_back();
  if (!prefix.empty()) prefix.back() = static_cast<char>(prefix.back() + 1);
  return prefix;
}

// Keys in order. No value means that only memory knows the key's value.
using found_keys = std::map<std::string, std::optional<find_page::found_value>>;

void add_names(pool_state& pool, std::string_view first_key, std::string_view prefix, std::size_t limit,
               found_keys& destination) {
  std::lock_guard lock(pool.names_mutex);
  std::size_t taken = 0;
  pool.volatile_names.visit(first_key, [&](std::string_view name) {
    if (taken++ == limit || !name.starts_with(prefix)) return false;
    destination.try_emplace(std::string(name));
    return true;
  });
}

}  // namespace

// Gathers up to `limit` keys from `first_key` on. The result is complete up to the `limit`th key; more may follow.
// Makes three passes: names, records, names. A key that moves between memory and index meanwhile appears in one of
// them.
result<found_keys> engine::impl::gather_keys(pool_state& pool, const std::string& first_key, const std::string& prefix,
                                             std::size_t limit) {
  found_keys keys;
  add_names(pool, first_key, prefix, limit, keys);
  std::size_t scanned = 0;
  status done = records->scan(family::values, full_key(pool.id, first_key), behind(full_key(pool.id, prefix)), true,
                              [&](std::string_view full, std::string_view raw) {
                                auto& value = keys.try_emplace(keys.end(), std::string(key_of(full)))->second;
                                if (const auto record = decode_value(raw))
                                  value = find_page::found_value{record->length_bytes, record->version};
                                return ++scanned < limit;
                              });
  if (!done) return std::move(done).error();
  add_names(pool, first_key, prefix, limit, keys);
  return keys;
}

result<find_page> engine::find(pool_id id, const find_options& options) {
  auto found = impl_->need_pool(id);
  if (!found) return std::move(found).error();
  const pattern wanted(options.regex);
  if (!wanted.good()) return wanted.good().error();
  const std::size_t limit = std::min(options.limit == 0 ? kMaxFindKeys : options.limit, kMaxFindKeys);
  std::string prefix = options.prefix;
  if (const std::string literal = literal_prefix_of(options.regex); literal.starts_with(prefix)) prefix = literal;
  std::string first_key = std::max(prefix, options.after.empty() ? std::string() : options.after + '\0');

  find_page page;
  std::size_t visited = 0;
  for (;;) {
    // One key more than the page can hold tells whether there are others.
    const std::size_t part = std::min(limit - page.keys.size(), kMaxFindVisits - visited) + 1;
    auto keys = impl_->gather_keys(**found, first_key, prefix, part);
    if (!keys) return std::move(keys).error();
    std::size_t taken = 0;
    for (auto& [key, value] : *keys) {
      const bool is_late = visited > 0 && std::chrono::steady_clock::now() >= options.deadline;
      if (page.keys.size() == limit || visited == kMaxFindVisits || is_late) {
        page.more = true;
        return page;
      }
      if (taken++ == part) break;  // keys from here on may be incomplete
      ++visited;
      page.last = key;
      if (!wanted.matches(key)) continue;
      if (!value) {
        const auto info = impl_->stat(full_key(id, key));
        if (!info) continue;  // it was erased meanwhile
        value = find_page::found_value{info->length_bytes, info->version};
      }
      page.keys.push_back(key);
      page.values.push_back(*value);
    }
    if (keys->size() < part) return page;
    first_key = page.last + '\0';
  }
}

}  // namespace pl::store
