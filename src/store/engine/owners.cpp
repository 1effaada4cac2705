// SPDX-License-Identifier: Apache-2.0
#include "store/engine/owners.hpp"

#include <cerrno>
#include <mutex>

#include "base/text.hpp"

namespace pl::store {
namespace {

constexpr std::string_view kEverybody = "*";

using text_number = unsigned long long;

}  // namespace

// ---- Names and quotas --------------------------------------------------------------------------------------------------

void owners::give_quota(owner_state& one) const {
  auto found = quotas_.find(one.name);
  if (found == quotas_.end()) found = quotas_.find(kEverybody);
  one.quota_keys = found == quotas_.end() ? 0 : found->second.keys;
  one.quota_bytes = found == quotas_.end() ? 0 : found->second.bytes;
  one.cluster_keys = found == quotas_.end() ? 0 : found->second.cluster_keys;
  one.cluster_bytes = found == quotas_.end() ? 0 : found->second.cluster_bytes;
}

void owners::give_elsewhere(owner_state& one) const {
  const auto found = elsewhere_.find(one.name);
  one.elsewhere_keys = found == elsewhere_.end() ? 0 : found->second.keys;
  one.elsewhere_bytes = found == elsewhere_.end() ? 0 : found->second.bytes;
}

owner_state& owners::add(owner_id id, std::string_view name) {
  auto& made = by_id_[id];
  made = std::make_unique<owner_state>(id, name);
  by_name_[made->name] = made.get();
  give_quota(*made);
  give_elsewhere(*made);
  return *made;
}

owner_id owners::need(std::string_view name) {
  if (name.empty()) return 0;
  if (name.size() > kMaxNameBytes) name = kEverybody;
  {
    const std::shared_lock lock(mutex_);
    if (const auto found = by_name_.find(name); found != by_name_.end()) return found->second->id;
  }
  const std::unique_lock lock(mutex_);
  if (by_id_.size() >= kMaxOwners) name = kEverybody;
  if (const auto found = by_name_.find(name); found != by_name_.end()) return found->second->id;
  return add(by_id_.empty() ? 1 : by_id_.rbegin()->first + 1, name).id;
}

owner_state* owners::find(owner_id id) const {
  if (id == 0) return nullptr;
  const std::shared_lock lock(mutex_);
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second.get();
}

void owners::restore(owner_id id, std::string_view name) {
  const std::unique_lock lock(mutex_);
  add(id, name).is_recorded = true;
}

void owners::set_quotas(const std::vector<owner_quota>& quotas) {
  const std::unique_lock lock(mutex_);
  quotas_.clear();
  for (const owner_quota& one : quotas) quotas_[one.name] = one;
  for (const auto& [id, one] : by_id_) give_quota(*one);
}

void owners::set_held_elsewhere(const std::vector<owner_held>& held) {
  const std::unique_lock lock(mutex_);
  elsewhere_.clear();
  for (const owner_held& one : held) elsewhere_[one.name] = one;
  for (const auto& [id, one] : by_id_) give_elsewhere(*one);
}

std::vector<owner_info> owners::list() const {
  std::vector<owner_info> out;
  const std::shared_lock lock(mutex_);
  for (const auto& [name, one] : by_name_)
    out.push_back(
        {one->id,
         name,
         one->keys.load(),
         one->bytes.load(),
         one->elsewhere_keys.load(),
         one->elsewhere_bytes.load(),
         one->refused.load(),
         {name, one->quota_bytes.load(), one->quota_keys.load(), one->cluster_bytes.load(), one->cluster_keys.load()}});
  return out;
}

// ---- What each holds ---------------------------------------------------------------------------------------------------

owner_changes owner_changes::between(const owned_value& before, const owned_value& after) noexcept {
  const auto keys = [](const owned_value& one) { return std::int64_t{one.exists ? 1 : 0}; };
  const auto bytes = [](const owned_value& one) { return one.exists ? static_cast<std::int64_t>(one.bytes) : 0; };
  if (before.exists && after.exists && before.owner == after.owner)
    return {{after.owner, 0, bytes(after) - bytes(before)}, {}};
  return {{after.owner, keys(after), bytes(after)}, {before.owner, -keys(before), -bytes(before)}};
}

status check_quota(const owner_state& owner, std::int64_t more_keys, std::uint64_t keys, std::int64_t more_bytes,
                   std::uint64_t bytes) {
  const auto refusal_of_keys = [&](std::uint64_t all, std::uint64_t quota, const char* scope) {
    return failure{
        EDQUOT, format("store: %s holds %llu keys%s, of a quota of %llu: erase some, or ask for a larger quota",
                       shown(owner.name).c_str(), static_cast<text_number>(all) - static_cast<text_number>(more_keys), scope,
                       static_cast<text_number>(quota))};
  };
  const auto refusal_of_bytes = [&](std::uint64_t all, std::uint64_t quota, const char* scope) {
    return failure{EDQUOT,
                   format("store: %s holds %llu bytes%s, of a quota of %llu, and this value would make them %llu: "
                          "erase some, or ask for a larger quota",
                          shown(owner.name).c_str(), static_cast<text_number>(all) - static_cast<text_number>(more_bytes),
                          scope, static_cast<text_number>(quota), static_cast<text_number>(all))};
  };
  constexpr const char* kInCluster = " on all servers of the cluster";
  if (const std::uint64_t most = owner.quota_keys; more_keys > 0 && most != 0 && keys > most)
    return refusal_of_keys(keys, most, "");
  if (const std::uint64_t most = owner.quota_bytes; more_bytes > 0 && most != 0 && bytes > most)
    return refusal_of_bytes(bytes, most, "");
  const std::uint64_t all_keys = keys + owner.elsewhere_keys, all_bytes = bytes + owner.elsewhere_bytes;
  if (const std::uint64_t most = owner.cluster_keys; more_keys > 0 && most != 0 && all_keys > most)
    return refusal_of_keys(all_keys, most, kInCluster);
  if (const std::uint64_t most = owner.cluster_bytes; more_bytes > 0 && most != 0 && all_bytes > most)
    return refusal_of_bytes(all_bytes, most, kInCluster);
  return {};
}

pool_owners::share* pool_owners::need(owner_id owner) {
  if (owner == 0 || table_ == nullptr) return nullptr;
  {
    const std::shared_lock lock(mutex_);
    if (const auto found = shares_.find(owner); found != shares_.end()) return &found->second;
  }
  owner_state* const known = table_->find(owner);
  if (known == nullptr) return nullptr;
  const std::unique_lock lock(mutex_);
  return &shares_.try_emplace(owner, *known).first->second;
}

bool pool_owners::restore(owner_id owner, const pool_counts& counts) {
  share* const one = need(owner);
  if (one == nullptr) return false;
  one->keys = one->indexed_keys = counts.keys;
  one->bytes = one->indexed_bytes = counts.bytes;
  one->owner.keys += counts.keys;
  one->owner.bytes += counts.bytes;
  return true;
}

void pool_owners::add(const owner_change& change, std::int64_t sign) {
  share* const one = change.is_nothing() ? nullptr : need(change.owner);
  if (one == nullptr) return;
  const auto keys = static_cast<std::uint64_t>(sign * change.keys), bytes = static_cast<std::uint64_t>(sign * change.bytes);
  one->keys.fetch_add(keys);
  one->bytes.fetch_add(bytes);
  one->owner.keys.fetch_add(keys);
  one->owner.bytes.fetch_add(bytes);
}

status pool_owners::charge(const owner_changes& changes, bool is_checked) {
  const owner_change& gains = changes.gains;
  share* const one = gains.is_nothing() ? nullptr : need(gains.owner);
  if (one != nullptr) {
    owner_state& owner = one->owner;
    const auto more_keys = static_cast<std::uint64_t>(gains.keys), more_bytes = static_cast<std::uint64_t>(gains.bytes);
    const std::uint64_t keys = owner.keys.fetch_add(more_keys) + more_keys;
    const std::uint64_t bytes = owner.bytes.fetch_add(more_bytes) + more_bytes;
    if (status fits = is_checked ? check_quota(owner, gains.keys, keys, gains.bytes, bytes) : status(); !fits) {
      owner.keys.fetch_sub(more_keys);
      owner.bytes.fetch_sub(more_bytes);
      owner.refused.fetch_add(1, std::memory_order_relaxed);
      return fits;
    }
    one->keys.fetch_add(more_keys);
    one->bytes.fetch_add(more_bytes);
  }
  add(changes.loses, 1);
  return {};
}

void pool_owners::refund(const owner_changes& changes) {
  add(changes.gains, -1);
  add(changes.loses, -1);
}

void pool_owners::take_back() {
  const std::unique_lock lock(mutex_);
  for (auto& [id, one] : shares_) {
    one.owner.keys.fetch_sub(one.keys.exchange(0));
    one.owner.bytes.fetch_sub(one.bytes.exchange(0));
    one.indexed_keys = one.indexed_bytes = 0;
  }
}

void pool_owners::each(const std::function<void(const share&)>& visit) const {
  const std::shared_lock lock(mutex_);
  for (const auto& [id, one] : shares_) visit(one);
}

std::string owner_key(owner_id id) {
  std::string key = "o";
  append_ordered(key, id);
  return key;
}

std::string owner_counts_key(pool_id pool, owner_id owner) {
  std::string key = "q";
  append_ordered(key, pool);
  append_ordered(key, owner);
  return key;
}

}  // namespace pl::store
