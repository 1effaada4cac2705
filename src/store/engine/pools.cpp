// SPDX-License-Identifier: Apache-2.0
#include "store/engine/pools.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/text.hpp"

namespace pl::store {

pool_info pool_state::info() const {
  pool_info made{id, name, *options(), keys.load(), bytes.load(), created_unix_ns};
  made.counts = {hits, misses, evicted, evicted_bytes, expired, 0, 0, 0};
  if (!cache) return made;
  made.cache = cache->terms();
  made.counts.spilled = cache->spilled;
  made.counts.memory_bytes = cache->memory_bytes();
  made.counts.disk_bytes = cache->disk_bytes();
  return made;
}

status pool_state::charge(std::int64_t more_keys, std::int64_t more_bytes) {
  if (more_keys == 0 && more_bytes == 0) return {};
  const std::uint64_t new_keys =
      keys.fetch_add(static_cast<std::uint64_t>(more_keys)) + static_cast<std::uint64_t>(more_keys);
  const std::uint64_t new_bytes =
      bytes.fetch_add(static_cast<std::uint64_t>(more_bytes)) + static_cast<std::uint64_t>(more_bytes);
  if (!has_quota() || cache) return {};
  const auto limits = options();
  const bool keys_over = more_keys > 0 && limits->quota_keys != 0 && new_keys > limits->quota_keys;
  const bool bytes_over = more_bytes > 0 && limits->quota_bytes != 0 && new_bytes > limits->quota_bytes;
  if (!keys_over && !bytes_over) return {};
  refund(more_keys, more_bytes);
  return failure{EDQUOT, keys_over ? format("store: pool %s: its quota is %llu keys", shown(name).c_str(),
                                            static_cast<unsigned long long>(limits->quota_keys))
                                   : format("store: pool %s: its quota is %llu bytes, with this value it would hold %llu",
                                            shown(name).c_str(), static_cast<unsigned long long>(limits->quota_bytes),
                                            static_cast<unsigned long long>(new_bytes))};
}

pool_ref pools::find(pool_id id) const {
  std::shared_lock lock(mutex_);
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

pool_ref pools::find(std::string_view name) const {
  std::shared_lock lock(mutex_);
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

std::vector<pool_info> pools::list() const {
  std::shared_lock lock(mutex_);
  std::vector<pool_info> made;
  for (const auto& [name, pool] : by_name_) made.push_back(pool->info());
  return made;
}

std::vector<pool_ref> pools::caches() const {
  std::vector<pool_ref> made;
  {
    std::shared_lock lock(mutex_);
    made = caches_;
  }
  std::vector<std::pair<std::uint64_t, pool_ref>> sized;
  for (pool_ref& one : made) sized.emplace_back(one->cache->memory_bytes(), std::move(one));
  std::sort(sized.begin(), sized.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  for (std::size_t i = 0; i < made.size(); ++i) made[i] = std::move(sized[i].second);
  return made;
}

std::size_t pools::count() const {
  std::shared_lock lock(mutex_);
  return by_id_.size();
}

void pools::add(pool_ref pool) {
  std::unique_lock lock(mutex_);
  if (pool->cache) caches_.push_back(pool);
  by_name_.emplace(pool->name, pool);
  by_id_.emplace(pool->id, std::move(pool));
}

void pools::remove(pool_id id) {
  std::unique_lock lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return;
  by_name_.erase(found->second->name);
  std::erase(caches_, found->second);
  by_id_.erase(found);
}

}  // namespace pl::store
