// SPDX-License-Identifier: Apache-2.0
// How the committer settles a unit: against the state that the group's earlier units leave, without showing anything yet.
#include <cerrno>
#include <chrono>

#include "base/text.hpp"
#include "store/engine/committer.hpp"
#include "store/engine/record.hpp"

namespace pl::store {

std::int64_t unix_now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

status check_condition(condition when, version_t expected, bool exists, version_t current, std::string_view full) {
  const bool needs_key = when == condition::if_present || when == condition::if_version;
  if (needs_key && !exists) return failure{ENOENT, "store: no key " + shown(key_of(full))};
  if (when == condition::if_absent && exists) return failure{EEXIST, "store: key " + shown(key_of(full)) + " exists"};
  if (when == condition::if_version && current != expected)
    return failure{ESTALE, format("store: key %s has version %llu, not %llu", shown(key_of(full)).c_str(),
                                  static_cast<unsigned long long>(current), static_cast<unsigned long long>(expected))};
  return {};
}

// What an atomic unit needs to be taken back out of its group.
struct committer::undo {
  std::vector<std::pair<std::string, key_state>> keys;
  std::map<pool_ref, pool_counts> counts;
  std::size_t freed = 0, written = 0;
  std::int64_t charged_keys = 0, charged_bytes = 0;
};

void committer::settle(group& of, commit_unit& unit) {
  switch (unit.what) {
    case commit_unit::kind::sync:
      of.sync = true;
      unit.reached = durability::durable;
      return;
    case commit_unit::kind::drop_pool:
      settle_drop(of, unit);
      return;
    case commit_unit::kind::remember:
      settle_told(of, unit);
      return;
    case commit_unit::kind::operations:
      break;
  }
  if (status able = with_.state.writable(); !able) {
    unit.failed = able.error();
    return;
  }
  std::optional<request_outcome> told;
  if (!unit.request.empty() && answer_repeated(of, unit, told)) return;
  settle_operations(of, unit);
  if (unit.failed || unit.request.empty()) return;
  request_outcome outcome{unit.request.sequence, unit.reached, unit.request.group, {}};
  bool any = false;
  for (const operation& what : unit.operations) {
    outcome.items.push_back({what.outcome.error, what.outcome.version, what.made ? what.made->crc : 0});
    any = any || what.outcome.error == 0;
  }
  if (!any) return;  // nothing was done: doing it again later is as good
  // The client is answered as by the store that it asked: here a later version may have overtaken this one.
  if (told && told->items.size() == outcome.items.size()) outcome.items = std::move(told->items);
  of.requests[{unit.request.client, unit.request.sequence}] = &unit;
  if (unit.reached != durability::volatile_) {
    const auto lock = with_.remembered.lock(unit.request);
    with_.remembered.store(of.batch, unit.request, outcome);
  }
  of.outcomes.emplace_back(unit.request, std::move(outcome));
}

// What another store says of requests takes the place of nothing that was done here, and of no later ones.
void committer::settle_told(group& of, commit_unit& unit) {
  if (status able = with_.state.writable(); !able) {
    unit.failed = able.error();
    return;
  }
  for (auto& [request, outcome] : unit.told) {
    if (of.requests.contains({request.client, request.sequence}) ||
        of.requests.contains({request.client, request.sequence + kDedupeWindow}))
      continue;
    const auto lock = with_.remembered.lock(request);
    const auto known = with_.remembered.find(request);
    if (!known && known.code() == EINVAL) continue;
    if (!known) {
      unit.failed = known.error();
      return;
    }
    if (*known && !(*known)->told) continue;
    outcome.told = true;
    if (outcome.reached != durability::volatile_) with_.remembered.store(of.batch, request, outcome);
    of.sync = of.sync || outcome.reached == durability::durable;
    of.outcomes.emplace_back(request, std::move(outcome));
  }
}

// False: the unit is to be done; `told` is then what another store said of it, if one did.
bool committer::answer_repeated(group& of, commit_unit& unit, std::optional<request_outcome>& told) {
  if (const auto twin = of.requests.find({unit.request.client, unit.request.sequence}); twin != of.requests.end()) {
    of.copies.emplace_back(&unit, twin->second);
    return true;
  }
  const auto lock = with_.remembered.lock(unit.request);
  const auto found = with_.remembered.find(unit.request);
  if (!found) {
    unit.failed = found.error();
    return true;
  }
  if (!*found) return false;
  // A copy of a change that was under way when this store was told of it: the value is not here yet.
  if ((*found)->told && unit.is_copy()) {
    told = **found;
    return false;
  }
  const request_outcome& outcome = **found;
  unit.repeated = true;
  unit.reached = outcome.reached;
  count(with_.state.repeated);
  for (std::size_t i = 0; i < unit.operations.size() && i < outcome.items.size(); ++i) {
    unit.operations[i].outcome.error = outcome.items[i].error;
    unit.operations[i].outcome.version = outcome.items[i].version;
  }
  return true;
}

void committer::settle_operations(group& of, commit_unit& unit) {
  if (unit.pool->dropped) {
    unit.failed = failure{ENXIO, "store: pool " + shown(unit.pool->name) + " was deleted"};
    return;
  }
  undo log;
  log.freed = of.freed.size();
  log.written = of.written.size();
  if (unit.atomic) {
    of.batch.SetSavePoint();
    log.counts = of.counts;
  }
  bool any = false;
  bool bad = false;
  for (operation& what : unit.operations) {
    const status done = settle_one(of, unit, what, log);
    if (done) {
      any = true;
      continue;
    }
    what.outcome.error = done.error().code;
    what.outcome.message = done.error().message;
    bad = true;
    if (unit.atomic) break;
  }
  if (unit.atomic && bad) {
    of.batch.RollbackToSavePoint();
    of.counts = std::move(log.counts);
    of.freed.resize(log.freed);
    of.written.resize(log.written);
    for (auto at = log.keys.rbegin(); at != log.keys.rend(); ++at) of.keys[at->first].now = std::move(at->second);
    unit.pool->refund(log.charged_keys, log.charged_bytes);
    auto& charged = of.charged[unit.pool];
    charged.keys -= static_cast<std::uint64_t>(log.charged_keys);
    charged.bytes -= static_cast<std::uint64_t>(log.charged_bytes);
    for (operation& what : unit.operations) {
      what.outcome.version = 0;
      if (what.outcome.error == 0) what.outcome = {ECANCELED, "store: another operation of the batch failed", 0};
    }
    return;
  }
  if (unit.atomic) of.batch.PopSavePoint();
  unit.reached = unit.level;
  if (any && unit.level == durability::durable) of.sync = true;
}

status committer::settle_one(group& of, commit_unit& unit, operation& what, undo& log) {
  auto needed = need_key(of, what.full);
  if (!needed) return std::move(needed).error();
  pending_key& key = **needed;
  if (status met = check_condition(what.when, what.expected_version, key.now.exists, key.now.version, what.full); !met)
    return met;
  if (what.is_late(key.now.exists, key.now.version)) {
    what.outcome.version = key.now.version;
    return {};
  }
  const bool putting = what.what == operation::kind::put;
  if (what.what == operation::kind::set_flags) {
    log.keys.emplace_back(what.full, key.now);
    return settle_flags(of, what, key);
  }
  const std::int64_t more_keys = (putting ? 1 : 0) - (key.now.exists ? 1 : 0);
  const std::int64_t more_bytes = (putting ? static_cast<std::int64_t>(what.made->length_bytes) : 0) -
                                  (key.now.exists ? static_cast<std::int64_t>(key.now.length_bytes) : 0);
  if (putting && !room_ && unit.level != durability::volatile_)
    return failure{ENOSPC, format("store: less than the reserve of %s is free on the disk of the index",
                                  format_size(with_.reserve_bytes).c_str())};
  if (status charged = charge(of, unit.pool, more_keys, more_bytes); !charged) return charged;
  log.charged_keys += more_keys;
  log.charged_bytes += more_bytes;
  log.keys.emplace_back(what.full, key.now);
  if (putting) return settle_put(of, unit, what, key);
  what.outcome.version = key.now.version;
  remove_record(of, unit.pool, what.full, key.now);
  key.now = key_state{};
  return {};
}

status committer::settle_put(group& of, commit_unit& unit, operation& what, pending_key& key) {
  value& made = *what.made;
  made.version = version_for(what.copy);
  made.written_unix_ns = unix_now_ns();
  made.level = unit.level;
  what.outcome.version = made.version;
  const bool was_large = !key.now.on_disk.empty();
  key_state next{true, unit.level != durability::volatile_, made.version, made.length_bytes, {}, what.made};
  if (!next.in_index) {
    remove_record(of, unit.pool, what.full, key.now);
    key.now = std::move(next);
    return {};
  }
  put_record(of, made, what.full);
  if (!made.on_disk.empty()) {
    with_.records.put(of.batch, family::extents, what.full, encode_extents(made.on_disk));
    of.written.push_back(what.made);
    next.on_disk = made.on_disk;
  } else if (was_large) {
    with_.records.erase(of.batch, family::extents, what.full);
  }
  pool_counts& counts = need_counts(of, unit.pool);
  if (key.now.in_index) {
    counts.bytes -= key.now.length_bytes;
    of.freed.insert(of.freed.end(), key.now.on_disk.begin(), key.now.on_disk.end());
  } else {
    ++counts.keys;
  }
  counts.bytes += made.length_bytes;
  key.now = std::move(next);
  return {};
}

void committer::remove_record(group& of, const pool_ref& pool, std::string_view full, key_state& state) {
  if (!state.in_index) return;
  with_.records.erase(of.batch, family::values, full);
  if (!state.on_disk.empty()) with_.records.erase(of.batch, family::extents, full);
  of.freed.insert(of.freed.end(), state.on_disk.begin(), state.on_disk.end());
  pool_counts& counts = need_counts(of, pool);
  --counts.keys;
  counts.bytes -= state.length_bytes;
}

void committer::put_record(group& of, const value& made, std::string_view full) {
  value_record record{made.version,         made.length_bytes, made.crc,     made.user_flags,
                      made.written_unix_ns, made.level,        made.on_disk, {}};
  std::string joined;
  if (made.on_disk.empty()) {
    const auto pieces = made.spans();
    for (const auto& piece : pieces) {
      record.small_value = {reinterpret_cast<const char*>(piece.data()), piece.size()};
      if (pieces.size() > 1) record.small_value = joined.append(record.small_value);
    }
  }
  with_.records.put(of.batch, family::values, full, encode(record));
}

status committer::settle_flags(group& of, operation& what, pending_key& key) {
  if (!key.now.exists) return failure{ENOENT, "store: no key " + shown(key_of(what.full))};
  what.outcome.version = key.now.version;
  if (key.now.current) of.flags.emplace_back(key.now.current, what.user_flags);
  if (!key.now.in_index) return {};
  const auto stored = with_.records.get(family::values, what.full);
  if (!stored) return stored.error();
  auto record = *stored ? decode_value(**stored) : std::nullopt;
  if (record && record->version == key.now.version) {
    record->user_flags = what.user_flags;
    with_.records.put(of.batch, family::values, what.full, encode(*record));
    return {};
  }
  // Put by this very group: nobody else sees the value yet.
  key.now.current->user_flags.store(what.user_flags, std::memory_order_relaxed);
  put_record(of, *key.now.current, what.full);
  return {};
}

void committer::settle_drop(group& of, commit_unit& unit) {
  if (status able = with_.state.writable(); !able) {
    unit.failed = able.error();
    return;
  }
  const pool_ref& pool = unit.pool;
  if (pool->dropped.exchange(true)) {
    unit.failed = failure{ENXIO, "store: pool " + shown(pool->name) + " was deleted"};
    return;
  }
  const std::string from = full_key(pool->id, "");
  const std::string until = full_key(pool->id + 1, "");
  std::vector<segment> pieces;
  status scanned = with_.records.scan(family::extents, from, until, false, [&](std::string_view, std::string_view raw) {
    if (const auto of_key = decode_extents(raw)) pieces.insert(pieces.end(), of_key->begin(), of_key->end());
    return true;
  });
  if (!scanned) {
    pool->dropped = false;
    unit.failed = scanned.error();
    return;
  }
  // What this group has put so far is in its batch, behind which the removal stands.
  for (auto& [full, key] : of.keys) {
    if (pool_of(full) != pool->id) continue;
    if (!(key.before.in_index && key.before.version == key.now.version))
      pieces.insert(pieces.end(), key.now.on_disk.begin(), key.now.on_disk.end());
    key.now = key_state{};
  }
  // (a piece that this group has freed already was in a record that the scan saw)
  for (const segment& freed : of.freed)
    std::erase_if(pieces, [&](const segment& piece) { return piece.offset_bytes == freed.offset_bytes; });
  of.freed.insert(of.freed.end(), pieces.begin(), pieces.end());
  with_.records.erase_range(of.batch, family::values, from, until);
  with_.records.erase_range(of.batch, family::extents, from, until);
  with_.records.erase(of.batch, family::catalogue, pool_key(pool->id));
  with_.records.erase(of.batch, family::catalogue, counts_key(pool->id));
  of.dropped.push_back(pool);
  of.sync = true;
  unit.reached = durability::durable;
}

result<committer::pending_key*> committer::need_key(group& of, const std::string& full) {
  if (const auto at = of.keys.find(full); at != of.keys.end()) {
    if (at->second.unreadable) return *at->second.unreadable;
    return &at->second;
  }
  key_state state;
  {
    table::shard& shard = with_.memory.of(full);
    std::lock_guard lock(shard.mutex);
    entry& at = shard.need(full);
    at.committing = true;
    at.loading.reset();
    if (at.current) {
      const value& now = *at.current;
      state = key_state{true, !at.is_volatile, now.version, now.length_bytes, {}, at.current};
      if (state.in_index) state.on_disk = now.on_disk;
    }
  }
  pending_key& made = of.keys[full];
  if (!state.exists) {
    const auto stored = with_.records.get(family::values, full);
    auto record = stored && *stored ? decode_value(**stored) : std::nullopt;
    if (!stored) made.unreadable = stored.error();
    if (stored && *stored && !record)
      made.unreadable = failure{EUCLEAN, "store: the record of key " + shown(key_of(full)) + " is damaged"};
    if (made.unreadable) return *made.unreadable;
    if (record) state = key_state{true, true, record->version, record->length_bytes, std::move(record->extents), nullptr};
  }
  made.before = state;
  made.now = std::move(state);
  return &made;
}

pool_counts& committer::need_counts(group& of, const pool_ref& pool) {
  const auto at = of.counts.find(pool);
  if (at != of.counts.end()) return at->second;
  return of.counts[pool] = pool_counts{pool->indexed_keys, pool->indexed_bytes};
}

status committer::charge(group& of, const pool_ref& pool, std::int64_t keys, std::int64_t bytes) {
  if (status charged = pool->charge(keys, bytes); !charged) return charged;
  pool_counts& sum = of.charged[pool];
  sum.keys += static_cast<std::uint64_t>(keys);
  sum.bytes += static_cast<std::uint64_t>(bytes);
  return {};
}

}  // namespace pl::store
