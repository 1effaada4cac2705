// SPDX-License-Identifier: Apache-2.0
// Owners of values: the calls, and what start-up reads. Puts are counted where they are applied (committer_settle.cpp,
// engine_write.cpp).
#include <cerrno>

#include "base/text.hpp"
#include "store/engine/engine.hpp"
#include "store/engine/engine_impl.hpp"
#include "store/engine/owners.hpp"

namespace pl::store {

// Until the first owner puts a value, earlier releases may open the store.
void engine::impl::name_format_with_owners(store_format now) {
  if (now.number == kFormatWithOwners) return;
  now.number = kFormatWithOwners;
  format_with_owners = encode(now);
}

// Reads the names of owners, and what each has in a pool.
status engine::impl::read_owner(std::string_view key, std::string_view raw, owned_counts& owned) {
  if (key.size() == 5 && key[0] == 'o') writers.restore(read_ordered(key.substr(1)), raw);
  if (key.size() != 9 || key[0] != 'q') return {};
  const pool_id pool = read_ordered(key.substr(1));
  const owner_id owner = read_ordered(key.substr(5));
  const auto counts = decode_counts(raw);
  if (!counts) return failure{EUCLEAN, format("store: the counts of owner %u in pool %u are damaged", owner, pool)};
  owned[pool].emplace_back(owner, *counts);
  return {};
}

std::string engine::impl::name_of_owner(owner_id id) const {
  const owner_state* const found = writers.find(id);
  return found == nullptr ? std::string() : found->name;
}

// Refuses early what the commit would refuse, which spares the transfer of the value. Conditions and repeated requests
// are left to the commit, so a put passes that replaces as many bytes of the same owner, and one that was done before.
status engine::impl::check_owner(const pool_state& pool, std::string_view key, owner_id owner, std::uint64_t length_bytes,
                                 const request_key& request) {
  owner_state* const one = pool.cache ? nullptr : writers.find(owner);
  if (one == nullptr) return {};
  const auto more_bytes = static_cast<std::int64_t>(length_bytes);
  status fits = check_quota(*one, 1, one->keys + 1, more_bytes, one->bytes + length_bytes);
  if (fits) return fits;
  const auto now = stat(full_key(pool.id, key));
  if (now && now->owner == owner) {
    const auto grows = more_bytes - static_cast<std::int64_t>(now->length_bytes);
    fits = check_quota(*one, 0, one->keys, grows, one->bytes + static_cast<std::uint64_t>(grows));
  }
  if (!fits && !request.empty()) {
    const auto once = remembered->lock(request);
    const auto done_before = remembered->find(request);
    if (!done_before || *done_before) return {};
  }
  if (!fits) one->refused.fetch_add(1, std::memory_order_relaxed);
  return fits;
}

failure engine::impl::why_refused(const pool_state& pool, std::string_view key, condition precondition,
                                  version_t expected_version, failure by_quota) {
  if (precondition == condition::none) return by_quota;
  const std::string full = full_key(pool.id, key);
  const auto now = stat(full);
  if (!now && now.code() != ENOENT) return by_quota;
  const status met = check_condition(precondition, expected_version, now.ok(), now ? now->version : 0, full);
  return met ? by_quota : met.error();
}

// ---- Owners ------------------------------------------------------------------------------------------------------------

owner_id engine::need_owner(std::string_view name) { return impl_->writers.need(name); }
std::string engine::owner_name(owner_id id) const { return impl_->name_of_owner(id); }
void engine::set_quotas(const std::vector<owner_quota>& quotas) { impl_->writers.set_quotas(quotas); }
bool engine::fits_quotas(pool_id pool, owner_id owner, std::uint64_t keys, std::uint64_t bytes) const {
  const pool_ref in = impl_->known.find(pool);
  if (!in || in->cache) return true;  // a cache refuses nothing for a quota: it evicts
  if (in->has_quota()) {
    const auto limits = in->options();
    if (limits->quota_keys != 0 && in->keys + keys > limits->quota_keys) return false;
    if (limits->quota_bytes != 0 && in->bytes + bytes > limits->quota_bytes) return false;
  }
  const owner_state* const one = impl_->writers.find(owner);
  return one == nullptr || check_quota(*one, static_cast<std::int64_t>(keys), one->keys + keys,
                                       static_cast<std::int64_t>(bytes), one->bytes + bytes);
}
void engine::set_held_elsewhere(const std::vector<owner_held>& held) { impl_->writers.set_held_elsewhere(held); }
std::vector<owner_info> engine::list_owners() const { return impl_->writers.list(); }

}  // namespace pl::store
