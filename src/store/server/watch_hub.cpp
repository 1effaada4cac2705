// SPDX-License-Identifier: Apache-2.0
#include "store/server/watch_hub.hpp"

#include <algorithm>
#include <utility>

namespace pl::store_server {

using store_protocol::event_kind;
using store_protocol::watch_event;

static_assert(static_cast<int>(event_kind::put) == static_cast<int>(store::change::put));
static_assert(static_cast<int>(event_kind::erased) == static_cast<int>(store::change::erased));
static_assert(static_cast<int>(event_kind::evicted) == static_cast<int>(store::change::evicted));
static_assert(static_cast<int>(event_kind::expired) == static_cast<int>(store::change::expired));

key_watch::key_watch(terms given, const account_ref& principal, metrics& counters)
    : terms_(std::move(given)),
      counted_(principal, &account::watches),
      queued_(principal, &account::watch_bytes),
      counters_(counters) {
  counted_.set(1);
  ++counters_.watches;
}

// What others hold counts only beyond this queue's own part. Precondition: the lock is held.
bool key_watch::has_room(std::uint64_t more) const {
  const std::uint64_t part = terms_.most_bytes / std::max<std::uint64_t>(counted_.all(), 1);
  return bytes_ + more <= part || queued_.all() + more <= terms_.most_bytes;
}

void key_watch::push(const store::key_change& one) {
  bool wakes = false;
  {
    const std::lock_guard hold(lock_);
    const std::uint64_t more = kEventBytes + one.key.size();
    if (one.kind == store::change::pool_deleted) {
      has_ended_ = true;
    } else if (!has_room(more)) {
      lost_ += events_.size() + 1;
      counters_.watch_lost += events_.size() + 1;
      events_.clear();
      queued_.set(bytes_ = 0);
    } else {
      events_.push_back(watch_event{static_cast<event_kind>(one.kind), std::string(one.key), one.version, one.length_bytes});
      queued_.set(bytes_ += more);
    }
    wakes = std::exchange(armed_, false);
  }
  if (wakes) terms_.wake();
}

void key_watch::arm() {
  {
    const std::lock_guard hold(lock_);
    armed_ = events_.empty() && lost_ == 0 && !has_ended_;
    if (armed_) return;
  }
  terms_.wake();
}

void key_watch::disarm() {
  const std::lock_guard hold(lock_);
  armed_ = false;
}

key_watch::taken key_watch::take(std::uint64_t most, std::size_t most_bytes) {
  taken out;
  const std::lock_guard hold(lock_);
  std::uint64_t count = 0;
  if (lost_ != 0) {  // ahead of everything queued
    store_protocol::append(out.body, watch_event{event_kind::lost, {}, 0, std::exchange(lost_, 0)});
    ++count;
  }
  for (; !events_.empty() && count < most && out.body.size() < most_bytes; ++count) {
    store_protocol::append(out.body, events_.front());
    bytes_ -= kEventBytes + events_.front().key.size();
    events_.pop_front();
  }
  queued_.set(bytes_);
  counters_.watch_events += count;
  out.more = !events_.empty();
  out.has_ended = has_ended_ && events_.empty();
  return out;
}

void watch_hub::tell(const store::key_change& one) {
  if (count_.load(std::memory_order_acquire) == 0) return;
  const std::shared_lock hold(lock_);
  const auto found = pools_.find(one.pool);
  if (found == pools_.end()) return;
  const auto push = [&](const std::vector<watch_ref>& list) {
    for (const watch_ref& each : list) each->push(one);
  };
  if (one.kind == store::change::pool_deleted) {
    for (const auto& [key, list] : found->second.keys) push(list);
    for (const auto& [length, table] : found->second.prefixes)
      for (const auto& [prefix, list] : table) push(list);
    return;
  }
  if (const auto exact = found->second.keys.find(one.key); exact != found->second.keys.end()) push(exact->second);
  for (const auto& [length, table] : found->second.prefixes) {
    if (length > one.key.size()) return;
    if (const auto match = table.find(one.key.substr(0, length)); match != table.end()) push(match->second);
  }
}

std::uint64_t watch_hub::add(const watch_ref& one) {
  const std::unique_lock hold(lock_);
  pool_watches& pool = pools_[one->what().pool];
  by_text& table = one->what().exact ? pool.keys : pool.prefixes[one->what().prefix.size()];
  table[one->what().prefix].push_back(one);
  count_.fetch_add(1, std::memory_order_release);
  return next_token_++;
}

void watch_hub::remove(const watch_ref& one) {
  const auto& target = one->what();
  const std::unique_lock hold(lock_);
  const auto pool = pools_.find(target.pool);
  if (pool == pools_.end()) return;
  const auto length = pool->second.prefixes.find(target.prefix.size());
  if (!target.exact && length == pool->second.prefixes.end()) return;
  by_text& table = target.exact ? pool->second.keys : length->second;
  const auto list = table.find(target.prefix);
  if (list == table.end()) return;
  count_ -= std::erase(list->second, one);
  if (list->second.empty()) table.erase(list);
  if (!target.exact && table.empty()) pool->second.prefixes.erase(length);
  if (pool->second.keys.empty() && pool->second.prefixes.empty()) pools_.erase(pool);
}

}  // namespace pl::store_server
