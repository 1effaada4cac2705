// SPDX-License-Identifier: Apache-2.0
// Settles a unit against the state left by the group's earlier units, without publishing anything.
#include <cerrno>
#include <chrono>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "store/engine/committer.hpp"
#include "store/engine/record.hpp"

namespace pl::store {

std::int64_t unix_now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

status check_condition(condition precondition, version_t expected, bool exists, version_t current, std::string_view full) {
  const bool needs_key = precondition == condition::if_present || precondition == condition::if_version;
  if (needs_key && !exists) return failure{ENOENT, "store: no key " + shown(key_of(full))};
  if (precondition == condition::if_absent && exists)
    return failure{EEXIST, "store: key " + shown(key_of(full)) + " exists"};
  if (precondition == condition::if_version && current != expected)
    return failure{ESTALE, format("store: key %s has version %llu, not %llu", shown(key_of(full)).c_str(),
                                  static_cast<unsigned long long>(current), static_cast<unsigned long long>(expected))};
  return {};
}

// The state for removing an atomic unit from its group again.
struct committer::undo {
  std::vector<std::pair<std::string, key_state>> keys;
  std::map<pool_ref, pool_counts> counts;
  std::map<std::pair<pool_ref, owner_id>, pool_counts> owner_counts;
  std::size_t freed = 0, written = 0, owner_charged = 0;
  std::int64_t charged_keys = 0, charged_bytes = 0;
};

void committer::settle(group& commit_group, commit_unit& unit) {
  switch (unit.type) {
    case commit_unit::kind::sync:
      commit_group.sync = true;
      unit.reached = durability::durable;
      return;
    case commit_unit::kind::drop_pool:
      settle_drop(commit_group, unit);
      return;
    case commit_unit::kind::remember:
      settle_outcomes(commit_group, unit);
      return;
    case commit_unit::kind::operations:
      break;
  }
  if (status able = components_.state.writable(); !able) {
    unit.failed = able.error();
    return;
  }
  std::optional<request_outcome> earlier_outcome;
  if (!unit.request.empty() && answer_repeated(commit_group, unit, earlier_outcome)) return;
  settle_operations(commit_group, unit);
  if (unit.failed || unit.request.empty()) return;
  request_outcome outcome{unit.request.sequence, unit.reached, unit.request.group, {}};
  bool any = false;
  for (const operation& op : unit.operations) {
    outcome.items.push_back({op.outcome.error, op.outcome.version, op.made ? op.made->crc : 0});
    any = any || op.outcome.error == 0;
  }
  if (!any) return;  // nothing changed, so repeating it is harmless
  // The client gets the answer of the store that it asked first, because a later version may have overtaken this one
  // here.
  if (earlier_outcome && earlier_outcome->items.size() == outcome.items.size())
    outcome.items = std::move(earlier_outcome->items);
  commit_group.requests[{unit.request.client, unit.request.sequence}] = &unit;
  if (unit.reached != durability::volatile_) {
    const auto lock = components_.remembered.lock(unit.request);
    components_.remembered.store(commit_group.batch, unit.request, outcome);
  }
  commit_group.outcomes.emplace_back(unit.request, std::move(outcome));
}

// Outcomes reported by another store replace neither those of operations done here nor later ones.
void committer::settle_outcomes(group& commit_group, commit_unit& unit) {
  if (status able = components_.state.writable(); !able) {
    unit.failed = able.error();
    return;
  }
  for (auto& [request, outcome] : unit.outcomes) {
    if (commit_group.requests.contains({request.client, request.sequence}) ||
        commit_group.requests.contains({request.client, request.sequence + kDedupeWindow}))
      continue;
    const auto lock = components_.remembered.lock(request);
    const auto known = components_.remembered.find(request);
    if (!known && known.code() == EINVAL) continue;
    if (!known) {
      unit.failed = known.error();
      return;
    }
    if (*known && !(*known)->is_remote) continue;
    outcome.is_remote = true;
    if (outcome.reached != durability::volatile_) components_.remembered.store(commit_group.batch, request, outcome);
    commit_group.sync = commit_group.sync || outcome.reached == durability::durable;
    commit_group.outcomes.emplace_back(request, std::move(outcome));
  }
}

// Returns false if the unit must be done; `earlier_outcome` then holds the outcome reported by another store, if any.
bool committer::answer_repeated(group& commit_group, commit_unit& unit, std::optional<request_outcome>& earlier_outcome) {
  if (const auto twin = commit_group.requests.find({unit.request.client, unit.request.sequence});
      twin != commit_group.requests.end()) {
    commit_group.copies.emplace_back(&unit, twin->second);
    return true;
  }
  const auto lock = components_.remembered.lock(unit.request);
  const auto found = components_.remembered.find(unit.request);
  if (!found) {
    unit.failed = found.error();
    return true;
  }
  if (!*found) return false;
  // A copy of a change that was in progress when its outcome was reported: the value is not here yet.
  if ((*found)->is_remote && unit.is_copy()) {
    earlier_outcome = **found;
    return false;
  }
  const request_outcome& outcome = **found;
  unit.repeated = true;
  unit.reached = outcome.reached;
  count(components_.state.repeated);
  for (std::size_t i = 0; i < unit.operations.size() && i < outcome.items.size(); ++i) {
    unit.operations[i].outcome.error = outcome.items[i].error;
    unit.operations[i].outcome.version = outcome.items[i].version;
  }
  return true;
}

void committer::settle_operations(group& commit_group, commit_unit& unit) {
  if (unit.pool->dropped) {
    unit.failed = failure{ENXIO, "store: pool " + shown(unit.pool->name) + " was deleted"};
    return;
  }
  undo log;
  log.freed = commit_group.freed.size();
  log.written = commit_group.written.size();
  log.owner_charged = commit_group.owner_charged.size();
  if (unit.atomic) {
    commit_group.batch.SetSavePoint();
    log.counts = commit_group.counts;
    log.owner_counts = commit_group.owner_counts;
  }
  bool any = false;
  bool bad = false;
  for (operation& op : unit.operations) {
    const status done = settle_one(commit_group, unit, op, log);
    if (done) {
      any = true;
      continue;
    }
    op.outcome.error = done.error().code;
    op.outcome.message = done.error().message;
    bad = true;
    if (unit.atomic) break;
  }
  if (unit.atomic && bad) {
    commit_group.batch.RollbackToSavePoint();
    commit_group.counts = std::move(log.counts);
    commit_group.owner_counts = std::move(log.owner_counts);
    refund_owners(commit_group, log.owner_charged);
    commit_group.freed.resize(log.freed);
    commit_group.written.resize(log.written);
    for (auto change = log.keys.rbegin(); change != log.keys.rend(); ++change)
      commit_group.keys[change->first].now = std::move(change->second);
    unit.pool->refund(log.charged_keys, log.charged_bytes);
    auto& charged = commit_group.charged[unit.pool];
    charged.keys -= static_cast<std::uint64_t>(log.charged_keys);
    charged.bytes -= static_cast<std::uint64_t>(log.charged_bytes);
    for (operation& op : unit.operations) {
      op.outcome.version = 0;
      if (op.outcome.error == 0) op.outcome = {ECANCELED, "store: another operation of the batch failed", 0};
    }
    return;
  }
  if (unit.atomic) commit_group.batch.PopSavePoint();
  unit.reached = unit.level;
  if (any && unit.level == durability::durable) commit_group.sync = true;
}

status committer::settle_one(group& commit_group, commit_unit& unit, operation& op, undo& log) {
  auto needed = need_key(commit_group, op.full);
  if (!needed) return std::move(needed).error();
  pending_key& key = **needed;
  if (status met = check_condition(op.precondition, op.expected_version, key.now.exists, key.now.version, op.full); !met)
    return met;
  if (op.is_late(key.now.exists, key.now.version)) {
    op.outcome.version = key.now.version;
    return {};
  }
  const bool putting = op.type == operation::kind::put;
  if (op.type == operation::kind::set_flags) {
    log.keys.emplace_back(op.full, key.now);
    return resolve_flags(commit_group, op, key);
  }
  const std::int64_t more_keys = (putting ? 1 : 0) - (key.now.exists ? 1 : 0);
  const std::int64_t more_bytes = (putting ? static_cast<std::int64_t>(op.made->length_bytes) : 0) -
                                  (key.now.exists ? static_cast<std::int64_t>(key.now.length_bytes) : 0);
  if (putting && !room_ && unit.level != durability::volatile_)
    return failure{ENOSPC, format("store: less than the reserve of %s is free on the disk of the index",
                                  format_size(components_.reserve_bytes).c_str())};
  const owner_changes changes = owner_changes::between(
      key.now.owned(), putting ? owned_value{true, op.made->owner, op.made->length_bytes} : owned_value{});
  const std::size_t charged_before = commit_group.owner_charged.size();
  if (status charged = charge_owners(commit_group, unit.pool, changes, op.copy.version == 0); !charged) return charged;
  if (status charged = charge(commit_group, unit.pool, more_keys, more_bytes); !charged) {
    refund_owners(commit_group, charged_before);
    return charged;
  }
  log.charged_keys += more_keys;
  log.charged_bytes += more_bytes;
  log.keys.emplace_back(op.full, key.now);
  if (putting) return settle_put(commit_group, unit, op, key);
  op.outcome.version = key.now.version;
  remove_record(commit_group, unit.pool, op.full, key.now);
  key.now = key_state{};
  return {};
}

status committer::settle_put(group& commit_group, commit_unit& unit, operation& op, pending_key& key) {
  value& made = *op.made;
  made.version = version_for(op.copy);
  made.written_unix_ns = unix_now_ns();
  made.level = unit.level;
  op.outcome.version = made.version;
  const bool was_large = !key.now.on_disk.empty();
  key_state next{true, unit.level != durability::volatile_, made.version, made.length_bytes, {}, op.made, made.owner};
  if (!next.in_index) {
    remove_record(commit_group, unit.pool, op.full, key.now);
    key.now = std::move(next);
    return {};
  }
  put_record(commit_group, made, op.full);
  if (!made.on_disk().empty()) {
    components_.records.put(commit_group.batch, family::extents, op.full, encode_extents(made.on_disk()));
    commit_group.written.push_back(op.made);
    next.on_disk = made.on_disk();
  } else if (was_large) {
    components_.records.erase(commit_group.batch, family::extents, op.full);
  }
  pool_counts& counts = need_counts(commit_group, unit.pool);
  count_owned(commit_group, unit.pool,
              owner_changes::between(key.now.in_index ? key.now.owned() : owned_value{}, next.owned()));
  if (key.now.in_index) {
    counts.bytes -= key.now.length_bytes;
    commit_group.freed.insert(commit_group.freed.end(), key.now.on_disk.begin(), key.now.on_disk.end());
  } else {
    ++counts.keys;
  }
  counts.bytes += made.length_bytes;
  key.now = std::move(next);
  return {};
}

void committer::remove_record(group& commit_group, const pool_ref& pool, std::string_view full, key_state& state) {
  if (!state.in_index) return;
  components_.records.erase(commit_group.batch, family::values, full);
  if (!state.on_disk.empty()) components_.records.erase(commit_group.batch, family::extents, full);
  commit_group.freed.insert(commit_group.freed.end(), state.on_disk.begin(), state.on_disk.end());
  pool_counts& counts = need_counts(commit_group, pool);
  --counts.keys;
  counts.bytes -= state.length_bytes;
  count_owned(commit_group, pool, owner_changes::between(state.owned(), {}));
}

void committer::put_record(group& commit_group, const value& made, std::string_view full) {
  value_record record{made.version, made.length_bytes, made.crc, made.user_flags, made.written_unix_ns, made.level,
                      made.owner,   made.on_disk(),    {}};
  std::string joined;
  if (made.on_disk().empty()) {
    const auto pieces = made.spans();
    for (const auto& piece : pieces) {
      record.small_value = {reinterpret_cast<const char*>(piece.data()), piece.size()};
      if (pieces.size() > 1) record.small_value = joined.append(record.small_value);
    }
  }
  components_.records.put(commit_group.batch, family::values, full, encode(record));
}

status committer::resolve_flags(group& commit_group, operation& op, pending_key& key) {
  if (!key.now.exists) return failure{ENOENT, "store: no key " + shown(key_of(op.full))};
  op.outcome.version = key.now.version;
  if (key.now.current) commit_group.flags.emplace_back(key.now.current, op.user_flags);
  if (!key.now.in_index) return {};
  const auto stored = components_.records.get(family::values, op.full);
  if (!stored) return stored.error();
  auto record = *stored ? decode_value(**stored) : std::nullopt;
  if (record && record->version == key.now.version) {
    record->user_flags = op.user_flags;
    components_.records.put(commit_group.batch, family::values, op.full, encode(*record));
    return {};
  }
  // Put by this group, so no reader sees the value yet.
  key.now.current->user_flags.store(op.user_flags, std::memory_order_relaxed);
  put_record(commit_group, *key.now.current, op.full);
  return {};
}

void committer::settle_drop(group& commit_group, commit_unit& unit) {
  if (status able = components_.state.writable(); !able) {
    unit.failed = able.error();
    return;
  }
  const pool_ref& pool = unit.pool;
  if (pool->dropped.exchange(true)) {
    unit.failed = failure{ENXIO, "store: pool " + shown(pool->name) + " was deleted"};
    return;
  }
  const std::string first_key = full_key(pool->id, "");
  const std::string end = full_key(pool->id + 1, "");
  std::vector<segment> pieces;
  status scanned =
      components_.records.scan(family::extents, first_key, end, false, [&](std::string_view, std::string_view raw) {
        if (const auto of_key = decode_extents(raw)) pieces.insert(pieces.end(), of_key->begin(), of_key->end());
        return true;
      });
  if (!scanned) {
    pool->dropped = false;
    unit.failed = scanned.error();
    return;
  }
  // The batch contains this group's earlier puts, and the removal comes after them.
  for (auto& [full, key] : commit_group.keys) {
    if (pool_of(full) != pool->id) continue;
    if (!(key.before.in_index && key.before.version == key.now.version))
      pieces.insert(pieces.end(), key.now.on_disk.begin(), key.now.on_disk.end());
    key.now = key_state{};
  }
  // The record that the scan saw may name a piece that this group has already freed.
  for (const segment& freed : commit_group.freed)
    std::erase_if(pieces, [&](const segment& piece) { return piece.offset_bytes == freed.offset_bytes; });
  commit_group.freed.insert(commit_group.freed.end(), pieces.begin(), pieces.end());
  components_.records.erase_range(commit_group.batch, family::values, first_key, end);
  components_.records.erase_range(commit_group.batch, family::extents, first_key, end);
  components_.records.erase(commit_group.batch, family::catalogue, pool_key(pool->id));
  components_.records.erase(commit_group.batch, family::catalogue, counts_key(pool->id));
  pool->held.each([&](const pool_owners::share& one) {
    components_.records.erase(commit_group.batch, family::catalogue, owner_counts_key(pool->id, one.owner.id));
  });
  commit_group.dropped.push_back(pool);
  commit_group.sync = true;
  unit.reached = durability::durable;
}

// The entry stays, because it is about to be changed. Precondition: the shard's lock is held.
void committer::forget_expired(table::shard& shard, entry& key_entry) {
  if (const pool_ref pool = components_.known.find(pool_of(key_entry.key()))) {
    pool->refund(1, static_cast<std::int64_t>(key_entry.current->length_bytes));
    pool->forget_name(key_of(key_entry.key()));
    count(pool->expired);
  }
  tell(change::expired, key_entry.key(), key_entry.current->version);
  shard.set_current(key_entry, nullptr);
  key_entry.is_volatile = false;
}

result<committer::pending_key*> committer::need_key(group& commit_group, const std::string& full) {
  if (const auto found = commit_group.keys.find(full); found != commit_group.keys.end()) {
    if (found->second.unreadable) return *found->second.unreadable;
    return &found->second;
  }
  key_state state;
  {
    table::shard& shard = components_.memory.shard_of(full);
    std::lock_guard lock(shard.mutex);
    entry& key_entry = shard.need(full);
    key_entry.committing = true;
    shard.set_load(key_entry, nullptr);
    if (key_entry.current && key_entry.current->expires_ns() != 0 && key_entry.current->has_expired(monotonic_ns())) {
      forget_expired(shard, key_entry);
    } else if (key_entry.current) {
      const value& now = *key_entry.current;
      state = key_state{true, !key_entry.is_volatile, now.version, now.length_bytes, {}, key_entry.current, now.owner};
      if (state.in_index) state.on_disk = now.on_disk();
    }
  }
  pending_key& made = commit_group.keys[full];
  if (!state.exists) {
    const auto stored = components_.records.get(family::values, full);
    auto record = stored && *stored ? decode_value(**stored) : std::nullopt;
    if (!stored) made.unreadable = stored.error();
    if (stored && *stored && !record)
      made.unreadable = failure{EUCLEAN, "store: the record of key " + shown(key_of(full)) + " is damaged"};
    if (made.unreadable) return *made.unreadable;
    if (record)
      state =
          key_state{true, true, record->version, record->length_bytes, std::move(record->extents), nullptr, record->owner};
  }
  made.before = state;
  made.now = std::move(state);
  return &made;
}

pool_counts& committer::need_counts(group& commit_group, const pool_ref& pool) {
  const auto found = commit_group.counts.find(pool);
  if (found != commit_group.counts.end()) return found->second;
  return commit_group.counts[pool] = pool_counts{pool->indexed_keys, pool->indexed_bytes};
}

// Counts what an owner has in the index.
void committer::count_owned(group& commit_group, const pool_ref& pool, const owner_changes& changes) {
  for (const owner_change& one : {changes.gains, changes.loses}) {
    const pool_owners::share* const share = one.is_nothing() ? nullptr : pool->held.need(one.owner);
    if (share == nullptr) continue;
    const auto [found, is_new] = commit_group.owner_counts.try_emplace({pool, one.owner});
    if (is_new) found->second = {share->indexed_keys, share->indexed_bytes};
    found->second.keys += static_cast<std::uint64_t>(one.keys);
    found->second.bytes += static_cast<std::uint64_t>(one.bytes);
  }
}

status committer::charge_owners(group& commit_group, const pool_ref& pool, const owner_changes& changes, bool is_checked) {
  if (changes.is_nothing()) return {};
  if (status charged = pool->held.charge(changes, is_checked); !charged) return charged;
  commit_group.owner_charged.emplace_back(pool, changes);
  return {};
}

// Undoes the charges from index `first` on.
void committer::refund_owners(group& commit_group, std::size_t first) {
  auto& charged = commit_group.owner_charged;
  for (std::size_t i = first; i < charged.size(); ++i) charged[i].first->held.refund(charged[i].second);
  charged.resize(first);
}

status committer::charge(group& commit_group, const pool_ref& pool, std::int64_t keys, std::int64_t bytes) {
  if (status charged = pool->charge(keys, bytes); !charged) return charged;
  pool_counts& sum = commit_group.charged[pool];
  sum.keys += static_cast<std::uint64_t>(keys);
  sum.bytes += static_cast<std::uint64_t>(bytes);
  return {};
}

}  // namespace pl::store
