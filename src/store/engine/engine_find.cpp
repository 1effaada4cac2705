// SPDX-License-Identifier: Apache-2.0
// Keys in order: those of the index and those that only memory knows, merged.
#include <set>

#include "store/engine/engine.hpp"
#include "store/engine/engine_impl.hpp"
#include "store/engine/key_pattern.hpp"
#include "store/engine/record.hpp"

namespace pl::store {
namespace {

// The least key behind all that start with `prefix`; empty if there is none.
std::string behind(std::string prefix) {
  while (!prefix.empty() && prefix.back() == '\xff') prefix.pop_back();
  if (!prefix.empty()) prefix.back() = static_cast<char>(prefix.back() + 1);
  return prefix;
}

void add_names(pool_state& pool, std::string_view first_key, std::string_view prefix, std::size_t limit,
               std::set<std::string>& destination) {
  std::lock_guard lock(pool.names_mutex);
  std::size_t taken = 0;
  for (auto name = pool.volatile_names.lower_bound(first_key); name != pool.volatile_names.end() && taken < limit;
       ++name, ++taken) {
    if (!std::string_view(*name).starts_with(prefix)) break;
    destination.insert(*name);
  }
}

}  // namespace

result<find_page> engine::find(pool_id id, const find_options& options) {
  auto found = impl_->need_pool(id);
  if (!found) return std::move(found).error();
  const pattern wanted(options.regex);
  if (!wanted.good()) return wanted.good().error();
  const std::size_t limit = std::min(options.limit == 0 ? kMaxFindKeys : options.limit, kMaxFindKeys);
  std::string first_key = options.prefix;
  if (!options.after.empty() && options.after + '\0' > first_key) first_key = options.after + '\0';

  // Three passes: names, records, names. A key that moves between memory and index meanwhile appears in one of them. Each
  // pass takes one key more than the page can use, so that the merged list is complete up to the page's end.
  constexpr std::size_t kKeysOfPass = kMaxFindVisits + 1;
  std::set<std::string> keys;
  add_names(**found, first_key, options.prefix, kKeysOfPass, keys);
  const std::string end = behind(full_key(id, options.prefix));
  std::size_t scanned = 0;
  status done =
      impl_->records->scan(family::values, full_key(id, first_key), end, true, [&](std::string_view full, std::string_view) {
        keys.emplace(key_of(full));
        return ++scanned < kKeysOfPass;
      });
  if (!done) return std::move(done).error();
  add_names(**found, first_key, options.prefix, kKeysOfPass, keys);

  find_page page;
  std::size_t visited = 0;
  for (const std::string& key : keys) {
    const bool is_late = visited > 0 && std::chrono::steady_clock::now() >= options.deadline;
    if (page.keys.size() == limit || visited == kMaxFindVisits || is_late) {
      page.more = true;
      break;
    }
    ++visited;
    page.last = key;
    if (wanted.matches(key)) page.keys.push_back(key);
  }
  return page;
}

}  // namespace pl::store
