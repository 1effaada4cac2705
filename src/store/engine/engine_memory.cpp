// SPDX-License-Identifier: Apache-2.0
// Changes of keys that only memory has. They are applied at once, under the lock of the key's shard.
#include <cerrno>
#include <utility>

#include "base/text.hpp"
#include "store/engine/engine.hpp"
#include "store/engine/engine_impl.hpp"
#include "store/engine/record.hpp"

namespace pl::store {

// Whether only memory has the key (`key_entry` is its entry or null). Precondition: the shard's lock is held.
bool engine::impl::truth_in_memory(const entry* key_entry, const pool_state& pool, std::string_view full) {
  if (key_entry != nullptr && (key_entry->committing || key_entry->loading)) return false;
  if (key_entry != nullptr && key_entry->current && key_entry->is_volatile) return true;
  if (key_entry != nullptr && key_entry->current) return false;
  if (pool.indexed_keys.load() == 0) return true;
  const auto stored = records->get(family::values, full);
  return stored && !*stored;
}

bool engine::impl::apply_in_memory(commit_unit& unit) {
  if (unit.type != commit_unit::kind::operations || unit.operations.size() != 1) return false;
  operation& op = unit.operations.front();
  if (op.type == operation::kind::put && unit.level != durability::volatile_) return false;
  std::optional<requests::turn> turn;
  if (!unit.request.empty()) {
    auto taken = remembered->lock_client(unit.request.client);
    if (!taken) return false;
    turn.emplace(*std::move(taken));
  }
  const std::size_t hash = entry_map::hash_of(op.full);
  table::shard& shard = values->shard_with(hash);
  memory_change change{
      op.type,         *unit.pool,          op.full,       hash,    op.made,
      op.precondition, op.expected_version, op.user_flags, op.copy, op.type == operation::kind::put ? unix_now_ns() : 0};
  std::lock_guard lock(shard.mutex);
  // The committer may be working on the same request, sent again over a new connection: it reports what it remembers.
  if (turn && (shard.is_unlogged(op.full) || !turn->is_new(unit.request.sequence))) return false;
  entry* key_entry = shard.find(op.full, hash);
  if (drop_if_expired(shard, key_entry, *unit.pool)) key_entry = nullptr;
  if (!truth_in_memory(key_entry, *unit.pool, op.full)) return false;
  const status done = apply_one(shard, key_entry, change);
  op.outcome.version = change.version;
  if (!done) {
    op.outcome.error = done.error().code;
    op.outcome.message = done.error().message;
    return true;
  }
  unit.reached = durability::volatile_;
  if (turn)
    turn->remember(unit.request.sequence, unit.reached, unit.request.group, op.outcome.version, op.made ? op.made->crc : 0);
  return true;
}

status engine::impl::apply_one(table::shard& shard, entry* key_entry, memory_change& op) {
  pool_state& pool = op.pool;
  const value* now = key_entry != nullptr ? key_entry->current.get() : nullptr;
  if (pool.dropped) return failure{ENXIO, "store: pool " + shown(pool.name) + " was deleted"};
  if (status met =
          check_condition(op.precondition, op.expected_version, now != nullptr, now != nullptr ? now->version : 0, op.full);
      !met)
    return met;
  if (operation::is_late(op.type, op.copy, now != nullptr, now != nullptr ? now->version : 0)) {
    op.version = now->version;
    return {};
  }
  const auto old_bytes = now != nullptr ? static_cast<std::int64_t>(now->length_bytes) : 0;
  const owned_value before = now != nullptr ? owned_value{true, now->owner, now->length_bytes} : owned_value{};
  switch (op.type) {
    case operation::kind::set_flags:
      if (now == nullptr) return failure{ENOENT, "store: no key " + shown(key_of(op.full))};
      key_entry->current->user_flags = op.user_flags;
      op.version = now->version;
      return {};
    case operation::kind::erase: {
      if (now == nullptr) return {};  // `none`: nothing to do
      op.version = now->version;
      pool.refund(1, old_bytes);
      (void)pool.held.charge(owner_changes::between(before, {}), false);
      op.replaced = shard.set_current(*key_entry, nullptr);
      key_entry->is_volatile = false;
      shard.drop_if_empty(*key_entry);
      pool.forget_name(key_of(op.full));
      tell(change::erased, op.full, op.version);
      return {};
    }
    case operation::kind::put:
      break;
  }
  if (status charged = pool.charge(now != nullptr ? 0 : 1, static_cast<std::int64_t>(op.made->length_bytes) - old_bytes);
      !charged)
    return charged;
  const bool is_checked = op.copy.version == 0;
  if (status charged =
          pool.held.charge(owner_changes::between(before, {true, op.made->owner, op.made->length_bytes}), is_checked);
      !charged) {
    pool.refund(now != nullptr ? 0 : 1, static_cast<std::int64_t>(op.made->length_bytes) - old_bytes);
    return charged;
  }
  const bool is_reserved =
      op.reserved_version != 0 && shard.is_newest(op.reserved_version) && commits->is_usable(op.reserved_version);
  op.made->version = op.version = is_reserved ? op.reserved_version : commits->version_for(op.copy);
  shard.note_version(op.version);
  op.made->written_unix_ns = op.now_unix_ns;
  op.made->level = durability::volatile_;
  if (now == nullptr) {
    std::lock_guard names(pool.names_mutex);
    pool.volatile_names.insert(key_of(op.full));
  }
  entry& slot = key_entry != nullptr ? *key_entry : shard.add(op.full, op.hash);
  const std::uint64_t length_bytes = op.made->length_bytes;
  op.replaced = shard.set_current(slot, std::move(op.made));
  slot.is_volatile = true;
  tell(change::put, op.full, op.version, length_bytes);
  return {};
}

}  // namespace pl::store
