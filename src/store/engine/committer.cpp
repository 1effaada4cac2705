// SPDX-License-Identifier: Apache-2.0
// The thread, the write, and the handling of its outcome. How operations are settled is in committer_settle.cpp.
#include "store/engine/committer.hpp"

#include <cerrno>

#include "base/text.hpp"
#include "os/blocked_signals.hpp"
#include "store/engine/record.hpp"

namespace pl::store {
namespace {

// Larger groups gain nothing.
constexpr std::size_t kGroupUnits = 1024;
constexpr std::uint64_t kGroupBytes = std::uint64_t{8} << 20;

std::uint64_t index_bytes(const commit_unit& unit) {
  std::uint64_t bytes = 0;
  for (const operation& op : unit.operations) {
    if (op.made && op.made->on_disk().empty()) bytes += op.made->length_bytes;
  }
  return bytes;
}

}  // namespace

committer::committer(parts components, version_t next_version, version_t ceiling)
    : components_(std::move(components)),
      next_version_(next_version),
      ceiling_(ceiling),
      thread_(start_thread([this] { run(); })) {}

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
  // An idle committer makes the mark durable against a loss of power.
  if (components_.records.is_mark_behind() && !wake_.wait_for(lock, std::chrono::seconds(1), is_asked)) {
    lock.unlock();
    if (status settled = components_.records.settle_mark(); !settled) components_.state.note(settled.error());
    lock.lock();
  }
  wake_.wait(lock, is_asked);
  if (components_.group_wait_us != 0 && queue_.size() == 1 && !stopping_) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(components_.group_wait_us));
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

void committer::commit(group& commit_group) {
  check_room();
  for (const unit_ref& unit : commit_group.units) settle(commit_group, *unit);
  written_since_check_ += commit_group.batch.GetDataSize();
  publish_volatile_names(commit_group);
  const status written = write(commit_group);
  if (written) publish(commit_group);
  else take_back(commit_group, written.error());
  for (const auto& [copy, original] : commit_group.copies) {
    copy->failed = original->failed;
    copy->reached = original->reached;
    copy->repeated = true;
    for (std::size_t i = 0; i < copy->operations.size() && i < original->operations.size(); ++i)
      copy->operations[i].outcome = original->operations[i].outcome;
  }
  // Frees the space of erased, replaced and refused values before the answers go out.
  for (const unit_ref& unit : commit_group.units)
    for (operation& op : unit->operations)
      if (unit->failed || op.outcome.error != 0) op.made.reset();
  commit_group.keys.clear();
  commit_group.written.clear();
  commit_group.flags.clear();
  reach("commit.before-acknowledge");
  for (const unit_ref& unit : commit_group.units) unit->done(*unit);
  reach("commit.acknowledged");
}

// Checks free space once per group: asking costs a system call, and the log grows only a little between two groups.
void committer::check_room() {
  const auto now = std::chrono::steady_clock::now();
  constexpr std::uint64_t kCheckBytes = std::uint64_t{4} << 20;
  if (room_ && now - room_checked_ < std::chrono::milliseconds(200) && written_since_check_ < kCheckBytes) return;
  const auto free = components_.free_bytes();
  // A file system that does not report free space refuses writes itself.
  room_ = !free || *free >= components_.reserve_bytes;
  room_checked_ = now;
  written_since_check_ = 0;
  components_.state.full.store(!room_, std::memory_order_relaxed);
}

status committer::write(group& commit_group) {
  const std::uint64_t parked = components_.space.parked();
  if (commit_group.batch.Count() == 0) {
    if (!commit_group.sync) return {};
    if (status able = components_.state.writable(); !able) return able;
    if (status synced = components_.records.sync(); !synced) {
      components_.state.note(synced.error());
      return synced;
    }
  } else {
    if (status able = components_.state.writable(); !able) return able;
    if (status recovered = components_.records.recover(); !recovered) return recovered;
    for (const auto& [pool, counts] : commit_group.counts) {
      if (!pool->dropped)
        components_.records.put(commit_group.batch, family::catalogue, counts_key(pool->id), encode(counts));
    }
    record_owners(commit_group);
    if (next_version_.load() + kVersionsAhead / 2 > ceiling_) {
      ceiling_ = next_version_.load() + kVersionsAhead;
      std::string raw;
      append_number(raw, ceiling_);
      components_.records.put(commit_group.batch, family::catalogue, kCeilingKey, raw);
    }
    reach("commit.before-log");
    commit_group.attempted = true;
    if (status written = components_.records.write(commit_group.batch, commit_group.sync); !written) {
      components_.state.note(written.error());
      return written;
    }
    reach("commit.after-log");
  }
  count(components_.state.commits);
  if (!commit_group.sync) return {};
  count(components_.state.syncs);
  components_.space.synced(parked);
  return {};
}

// Together with the counts, writes the names of owners that the catalogue does not know yet, and the format that says
// that there are owners.
void committer::record_owners(group& commit_group) {
  const index& records = components_.records;
  for (const auto& [holder, counts] : commit_group.owner_counts) {
    const auto& [pool, owner] = holder;
    if (pool->dropped) continue;
    const std::string key = owner_counts_key(pool->id, owner);
    if (counts.keys == 0) records.erase(commit_group.batch, family::catalogue, key);
    else records.put(commit_group.batch, family::catalogue, key, encode(counts));
    owner_state* const known = components_.writers.find(owner);
    if (known->is_recorded) continue;
    records.put(commit_group.batch, family::catalogue, owner_key(owner), known->name);
    commit_group.recorded.push_back(known);
  }
  if (!commit_group.recorded.empty() && !components_.format_with_owners.empty())
    records.put(commit_group.batch, family::catalogue, kFormatKey, components_.format_with_owners);
}

status committer::sync_log() {
  const std::uint64_t parked = components_.space.parked();
  if (status synced = components_.records.sync(); !synced) {
    components_.state.note(synced.error());
    return synced;
  }
  count(components_.state.syncs);
  components_.space.synced(parked);
  return {};
}

// Publishes the name of a key that leaves the index for memory alone before its record is removed, so that one of the
// passes of find() (names, records, names) sees it.
void committer::publish_volatile_names(group& commit_group) {
  for (const auto& [full, key] : commit_group.keys) {
    if (!key.before.in_index || !key.now.exists || key.now.in_index) continue;
    const pool_ref pool = components_.known.find(pool_of(full));
    if (!pool) continue;
    std::lock_guard lock(pool->names_mutex);
    pool->volatile_names.insert(key_of(full));
  }
}

void committer::publish(group& commit_group) {
  for (const value_ref& made : commit_group.written) made->owns_extents = false;
  for (const auto& [pool, counts] : commit_group.counts) {
    pool->indexed_keys.store(counts.keys);
    pool->indexed_bytes.store(counts.bytes);
  }
  for (const auto& [holder, counts] : commit_group.owner_counts) {
    pool_owners::share* const one = holder.first->held.need(holder.second);
    one->indexed_keys.store(counts.keys);
    one->indexed_bytes.store(counts.bytes);
  }
  for (owner_state* const one : commit_group.recorded) one->is_recorded = true;
  if (!commit_group.recorded.empty()) components_.format_with_owners.clear();
  for (const auto& [made, flags] : commit_group.flags) made->user_flags.store(flags, std::memory_order_relaxed);
  for (auto& [full, key] : commit_group.keys) publish_key(full, key);
  for (const pool_ref& pool : commit_group.dropped) forget_pool(pool);
  reach("commit.keys-published");
  for (auto& [request, outcome] : commit_group.outcomes) {
    const auto lock = components_.remembered.lock(request);
    components_.remembered.remember(request, std::move(outcome));
  }
  for (const auto& [full, key] : commit_group.keys) {
    table::shard& shard = components_.memory.shard_of(full);
    const std::lock_guard lock(shard.mutex);
    shard.unlogged.clear();  // all of them belong to this group
  }
  if (commit_group.sync) components_.space.release(std::move(commit_group.freed));
  else components_.space.release_after_sync(std::move(commit_group.freed));
  reach("commit.published");
}

// Precondition: the lock of the key's shard is held, so that the key's changes are reported in their order.
void committer::tell(change kind, std::string_view full, version_t version, std::uint64_t length_bytes) const {
  if (components_.on_change) components_.on_change({pool_of(full), kind, key_of(full), version, length_bytes});
}

void committer::publish_key(const std::string& full, pending_key& key) {
  const bool was_volatile = key.before.exists && !key.before.in_index;
  const bool is_volatile = key.now.exists && !key.now.in_index;
  const pool_ref pool = was_volatile || is_volatile ? components_.known.find(pool_of(full)) : nullptr;
  value_ref old;
  table::shard& shard = components_.memory.shard_of(full);
  std::lock_guard lock(shard.mutex);
  shard.note_version(std::max(key.before.version, key.now.version));
  shard.unlogged.push_back(full);
  entry& key_entry = shard.need(full);
  old = key_entry.current;  // released after the lock
  key_entry.committing = false;
  key_entry.is_volatile = is_volatile;
  // A value that only the disk holds is found through its record, unless it has none. A value without bytes also needs
  // no entry, which no eviction would ever reach.
  const bool keep = key.now.exists && key.now.current && (is_volatile || !key.now.current->segments().empty());
  shard.set_current(key_entry, keep ? key.now.current : nullptr);
  shard.drop_if_empty(key_entry);
  if (key.now.exists && (!key.before.exists || key.before.version != key.now.version))
    tell(change::put, full, key.now.version, key.now.length_bytes);
  if (key.before.exists && !key.now.exists) tell(change::erased, full, key.before.version);
  if (!pool || was_volatile == is_volatile) return;
  std::lock_guard names(pool->names_mutex);
  if (is_volatile) pool->volatile_names.insert(key_of(full));
  else pool->volatile_names.erase(key_of(full));
}

void committer::forget_pool(const pool_ref& pool) {
  std::vector<value_ref> old;  // released after the locks
  for (std::size_t i = 0; i < table::kShards; ++i) {
    table::shard& shard = components_.memory.shard_at(i);
    std::lock_guard lock(shard.mutex);
    shard.entries.visit([&](entry& key_entry) {
      if (pool_of(key_entry.key()) != pool->id) return;
      if (key_entry.current) old.push_back(key_entry.current);
      shard.set_load(key_entry, nullptr);
      shard.set_current(key_entry, nullptr);
      shard.drop_if_empty(key_entry);
    });
  }
  pool->held.take_back();  // no value of the pool comes or goes any more: all shards have been visited
  tell(change::pool_deleted, full_key(pool->id, ""), 0);
}

void committer::take_back(group& commit_group, const failure& reason) {
  // The log may hold the records although the write failed, so their space is not reused. The next start sees what the
  // log holds, and frees the space.
  for (const value_ref& made : commit_group.written) made->owns_extents = made->owns_extents && !commit_group.attempted;
  for (auto& [pool, counts] : commit_group.charged)
    pool->refund(static_cast<std::int64_t>(counts.keys), static_cast<std::int64_t>(counts.bytes));
  refund_owners(commit_group, 0);
  for (auto& [full, key] : commit_group.keys) {
    table::shard& shard = components_.memory.shard_of(full);
    std::lock_guard lock(shard.mutex);
    entry& key_entry = shard.need(full);
    key_entry.committing = false;
    shard.drop_if_empty(key_entry);
  }
  for (const pool_ref& pool : commit_group.dropped) pool->dropped = false;
  for (const unit_ref& unit : commit_group.units) {
    if (!unit->repeated) unit->failed = reason;
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
