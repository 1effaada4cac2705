// SPDX-License-Identifier: Apache-2.0
#include "store/engine/pool_cache.hpp"

#include <algorithm>
#include <bit>

#include "base/clock.hpp"
#include "store/engine/arena.hpp"

namespace pl::store {

pool_cache::pool_cache(const cache_terms& terms, std::uint64_t memory_bytes)
    : terms_(terms),
      default_memory_bytes_(memory_bytes),
      in_memory_(eviction_policy::make(terms.policy)),
      on_disk_(eviction_policy::make(eviction::lru)) {  // values there were selected once already
  set_terms(terms);
}

cache_terms pool_cache::terms() const {
  const std::lock_guard lock(mutex_);
  return terms_;
}

void pool_cache::set_terms(const cache_terms& next) {
  const std::lock_guard lock(mutex_);
  const eviction stays = terms_.policy;
  terms_ = next;
  terms_.policy = stays;
  memory_limit_ = next.memory_bytes != 0 ? next.memory_bytes : default_memory_bytes_;
  disk_limit_ = next.disk_bytes;
  ttl_ms_ = next.ttl_ms;
}

std::uint64_t pool_cache::expiry_of(std::uint64_t ttl_ms) const noexcept {
  const std::uint64_t own = ttl_ms != 0 ? ttl_ms : ttl_ms_.load(std::memory_order_relaxed);
  return own == 0 ? 0 : monotonic_ns() + std::min(own, kMaxTtlMs) * 1'000'000;
}

std::uint64_t pool_cache::memory_of(std::uint64_t length_bytes) noexcept {
  if (length_bytes <= arena::kSlotBytes) return std::max(arena::kSmallestSlotBytes, std::bit_ceil(length_bytes));
  return disk_of(length_bytes);
}

std::uint64_t pool_cache::disk_of(std::uint64_t length_bytes) noexcept {
  return (length_bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
}

void pool_cache::count_bytes() {
  memory_bytes_.store(in_memory_->bytes(), std::memory_order_relaxed);
  disk_bytes_.store(on_disk_->bytes(), std::memory_order_relaxed);
  next_expiry_ns_.store(expiring_.empty() ? ~std::uint64_t{0} : expiring_.begin()->first, std::memory_order_relaxed);
}

void pool_cache::detach(cache_entry& one) {
  tier_of(one).remove(one);
  if (one.expires_ns != 0) expiring_.erase({one.expires_ns, &one});
}

void pool_cache::place(cache_entry& one, std::uint64_t length_bytes, bool on_disk, std::uint64_t expires_ns) {
  const std::lock_guard lock(mutex_);
  const auto uses = one.uses.load(std::memory_order_relaxed);
  const bool is_known = one.queue != cached_value::place::none && one.on_disk == on_disk;
  const std::uint64_t bytes = on_disk ? disk_of(length_bytes) : memory_of(length_bytes);
  if (is_known && one.bytes == bytes && one.expires_ns == expires_ns) {
    one.note_use();
    if (tier_of(one).needs_uses()) tier_of(one).used(one);
    return;
  }
  detach(one);
  one.on_disk = on_disk;
  one.bytes = bytes;
  one.expires_ns = expires_ns;
  tier_of(one).insert(one);
  if (is_known) one.uses.store(uses, std::memory_order_relaxed), one.note_use();
  if (expires_ns != 0) expiring_.insert({expires_ns, &one});
  count_bytes();
}

void pool_cache::used(cache_entry& one) {
  one.note_use();
  if (!in_memory_->needs_uses() && !one.on_disk) return;
  const std::lock_guard lock(mutex_);
  tier_of(one).used(one);
}

void pool_cache::remove(cache_entry& one) {
  const std::lock_guard lock(mutex_);
  detach(one);
  count_bytes();
}

std::optional<pool_cache::candidate> pool_cache::take(bool from_disk) {
  const std::lock_guard lock(mutex_);
  cached_value* const one = (from_disk ? *on_disk_ : *in_memory_).take_victim();
  if (one == nullptr) return std::nullopt;
  count_bytes();
  return candidate{std::string(one->key()), static_cast<const cache_entry*>(one)};
}

std::vector<pool_cache::candidate> pool_cache::take_expired(std::uint64_t now_ns, std::size_t limit) {
  std::vector<candidate> out;
  const std::lock_guard lock(mutex_);
  for (auto next = expiring_.begin(); next != expiring_.end() && next->first <= now_ns && out.size() < limit; ++next) {
    if (next->second->queue == cached_value::place::none) continue;  // another thread has taken it
    tier_of(*next->second).remove(*next->second);
    out.push_back({std::string(next->second->key()), next->second});
  }
  count_bytes();
  return out;
}

bool pool_cache::is_taken(const cache_entry& one) const {
  const std::lock_guard lock(mutex_);
  return one.queue == cached_value::place::none;
}

void pool_cache::put_back(cache_entry& one) {
  const std::lock_guard lock(mutex_);
  tier_of(one).put_back(one);
  count_bytes();
}

std::size_t pool_cache::count(bool on_disk) const {
  const std::lock_guard lock(mutex_);
  return (on_disk ? *on_disk_ : *in_memory_).count();
}

}  // namespace pl::store
