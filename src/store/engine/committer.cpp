// SPDX-License-Identifier: Apache-2.0
// The thread, the write, and what is done with its outcome. How operations are settled is in committer_settle.cpp.
#include "store/engine/committer.hpp"

#include <cerrno>

#include "base/text.hpp"
#include "store/engine/record.hpp"

namespace pl::store {
namespace {

// A group larger than this gains nothing from being one.
constexpr std::size_t kGroupUnits = 1024;
constexpr std::uint64_t kGroupBytes = std::uint64_t{8} << 20;

std::uint64_t index_bytes(const commit_unit& unit) {
  std::uint64_t bytes = 0;
  for (const operation& what : unit.operations) {
    if (what.made && what.made->on_disk.empty()) bytes += what.made->length_bytes;
  }
  return bytes;
}

}  // namespace

committer::committer(parts with, version_t next_version, version_t ceiling)
    : with_(std::move(with)), next_version_(next_version), ceiling_(ceiling), thread_([this] { run(); }) {}

committer::~committer() { stop(); }

void committer::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void committer::enqueue(unit_ref unit) {
  bool was_empty = false;
  {
    std::lock_guard lock(mutex_);
    was_empty = queue_.empty();
    if (!stopping_) queue_.push_back(std::move(unit));
  }
  if (unit) {
    unit->failed = failure{ESHUTDOWN, "store: closed"};
    unit->done(*unit);
  } else if (was_empty) {
    wake_.notify_one();
  }
}

std::vector<unit_ref> committer::take() {
  std::unique_lock lock(mutex_);
  const auto is_asked = [&] { return stopping_ || !queue_.empty(); };
  // Whoever has nothing to do has time to make the mark durable, for the loss of power.
  if (with_.records.is_mark_behind() && !wake_.wait_for(lock, std::chrono::seconds(1), is_asked)) {
    lock.unlock();
    if (status settled = with_.records.settle_mark(); !settled) with_.state.note(settled.error());
    lock.lock();
  }
  wake_.wait(lock, is_asked);
  if (with_.group_wait_us != 0 && queue_.size() == 1 && !stopping_) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(with_.group_wait_us));
    lock.lock();
  }
  std::vector<unit_ref> taken;
  std::uint64_t bytes = 0;
  while (!queue_.empty() && taken.size() < kGroupUnits && bytes < kGroupBytes) {
    bytes += index_bytes(*queue_.front());
    taken.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  return taken;
}

void committer::run() {
  for (;;) {
    group now;
    now.units = take();
    if (now.units.empty()) return;  // stopping, and nothing left
    commit(now);
  }
}

void committer::commit(group& of) {
  check_room();
  for (const unit_ref& unit : of.units) settle(of, *unit);
  written_since_check_ += of.batch.GetDataSize();
  announce(of);
  const status written = write(of);
  if (written) publish(of);
  else take_back(of, written.error());
  for (const auto& [copy, original] : of.copies) {
    copy->failed = original->failed;
    copy->reached = original->reached;
    copy->repeated = true;
    for (std::size_t i = 0; i < copy->operations.size() && i < original->operations.size(); ++i)
      copy->operations[i].outcome = original->operations[i].outcome;
  }
  // Whoever is answered finds the space of what went, or was refused, already free.
  for (const unit_ref& unit : of.units)
    for (operation& what : unit->operations)
      if (unit->failed || what.outcome.error != 0) what.made.reset();
  of.keys.clear();
  of.written.clear();
  of.flags.clear();
  reach("commit.before-acknowledge");
  for (const unit_ref& unit : of.units) unit->done(*unit);
  reach("commit.acknowledged");
}

// Asking the file system costs a call; between two answers the log cannot have grown by more than a little.
void committer::check_room() {
  const auto now = std::chrono::steady_clock::now();
  constexpr std::uint64_t kCheckBytes = std::uint64_t{4} << 20;
  if (room_ && now - room_checked_ < std::chrono::milliseconds(200) && written_since_check_ < kCheckBytes) return;
  const auto free = with_.free_bytes();
  room_ = !free || *free >= with_.reserve_bytes;  // a file system that does not say will refuse by itself
  room_checked_ = now;
  written_since_check_ = 0;
  with_.state.full.store(!room_, std::memory_order_relaxed);
}

status committer::write(group& of) {
  const std::uint64_t parked = with_.space.parked();
  if (of.batch.Count() == 0) {
    if (!of.sync) return {};
    if (status able = with_.state.writable(); !able) return able;
    if (status synced = with_.records.sync(); !synced) {
      with_.state.note(synced.error());
      return synced;
    }
  } else {
    if (status able = with_.state.writable(); !able) return able;
    if (needs_recovery_) {
      if (status recovered = with_.records.recover(); !recovered) return recovered;
      needs_recovery_ = false;
    }
    for (const auto& [pool, counts] : of.counts) {
      if (!pool->dropped) with_.records.put(of.batch, family::catalogue, counts_key(pool->id), encode(counts));
    }
    if (next_version_.load() + kVersionsAhead / 2 > ceiling_) {
      ceiling_ = next_version_.load() + kVersionsAhead;
      std::string raw;
      append_number(raw, ceiling_);
      with_.records.put(of.batch, family::catalogue, kCeilingKey, raw);
    }
    reach("commit.before-log");
    of.attempted = true;
    if (status written = with_.records.write(of.batch, of.sync); !written) {
      with_.state.note(written.error());
      needs_recovery_ = true;
      return written;
    }
    reach("commit.after-log");
  }
  count(with_.state.commits);
  if (!of.sync) return {};
  count(with_.state.syncs);
  with_.space.synced(parked);
  return {};
}

status committer::sync_log() {
  const std::uint64_t parked = with_.space.parked();
  if (status synced = with_.records.sync(); !synced) {
    with_.state.note(synced.error());
    return synced;
  }
  count(with_.state.syncs);
  with_.space.synced(parked);
  return {};
}

// A key that leaves the index for memory alone is announced to find() before its record goes, so that one of its two looks
// (names, records, names) meets it.
void committer::announce(group& of) {
  for (const auto& [full, key] : of.keys) {
    if (!key.before.in_index || !key.now.exists || key.now.in_index) continue;
    const pool_ref pool = with_.known.find(pool_of(full));
    if (!pool) continue;
    std::lock_guard lock(pool->names_mutex);
    pool->volatile_names.emplace(key_of(full));
  }
}

void committer::publish(group& of) {
  for (const value_ref& made : of.written) made->owns_extents = false;
  for (const auto& [pool, counts] : of.counts) {
    pool->indexed_keys.store(counts.keys);
    pool->indexed_bytes.store(counts.bytes);
  }
  for (const auto& [made, flags] : of.flags) made->user_flags.store(flags, std::memory_order_relaxed);
  for (auto& [full, key] : of.keys) publish_key(full, key);
  for (const pool_ref& pool : of.dropped) forget_pool(pool);
  for (auto& [request, outcome] : of.outcomes) {
    const auto lock = with_.remembered.lock(request);
    with_.remembered.remember(request, std::move(outcome));
  }
  if (of.sync) with_.space.release(std::move(of.freed));
  else with_.space.release_after_sync(std::move(of.freed));
  reach("commit.published");
}

void committer::publish_key(const std::string& full, pending_key& key) {
  const bool was_volatile = key.before.exists && !key.before.in_index;
  const bool is_volatile = key.now.exists && !key.now.in_index;
  const pool_ref pool = was_volatile || is_volatile ? with_.known.find(pool_of(full)) : nullptr;
  value_ref old;
  table::shard& shard = with_.memory.of(full);
  std::lock_guard lock(shard.mutex);
  entry& at = shard.need(full);
  old = at.current;  // let go of behind the lock
  at.committing = false;
  at.is_volatile = is_volatile;
  // A value that lies on disk alone is found through its record, unless it has none.
  const bool keep = key.now.exists && key.now.current && (is_volatile || key.now.current->in_memory());
  shard.set_current(at, keep ? key.now.current : nullptr);
  shard.drop_if_empty(at);
  if (!pool || was_volatile == is_volatile) return;
  std::lock_guard names(pool->names_mutex);
  if (is_volatile) pool->volatile_names.emplace(key_of(full));
  else if (const auto name = pool->volatile_names.find(key_of(full)); name != pool->volatile_names.end())
    pool->volatile_names.erase(name);
}

void committer::forget_pool(const pool_ref& pool) {
  std::vector<value_ref> old;  // let go of behind the locks
  for (std::size_t i = 0; i < table::kShards; ++i) {
    table::shard& shard = with_.memory.at(i);
    std::lock_guard lock(shard.mutex);
    for (auto next = shard.entries.begin(); next != shard.entries.end();) {
      entry& at = next->second;
      ++next;
      if (pool_of(*at.key) != pool->id) continue;
      if (at.current) old.push_back(at.current);
      at.loading.reset();
      shard.set_current(at, nullptr);
      shard.drop_if_empty(at);
    }
  }
}

void committer::take_back(group& of, const failure& why) {
  // The log may hold the records although the write failed. Nothing else may be written where they point to; the next start,
  // which sees what the log really holds, gives the space back.
  for (const value_ref& made : of.written) made->owns_extents = made->owns_extents && !of.attempted;
  for (auto& [pool, counts] : of.charged)
    pool->refund(static_cast<std::int64_t>(counts.keys), static_cast<std::int64_t>(counts.bytes));
  for (auto& [full, key] : of.keys) {
    table::shard& shard = with_.memory.of(full);
    std::lock_guard lock(shard.mutex);
    entry& at = shard.need(full);
    at.committing = false;
    shard.drop_if_empty(at);
  }
  for (const pool_ref& pool : of.dropped) pool->dropped = false;
  for (const unit_ref& unit : of.units) {
    if (!unit->repeated) unit->failed = why;
  }
}

std::string pool_key(pool_id id) {
  std::string key = "p";
  append_ordered(key, id);
  return key;
}

std::string counts_key(pool_id id) {
  std::string key = "c";
  append_ordered(key, id);
  return key;
}

}  // namespace pl::store
