// SPDX-License-Identifier: Apache-2.0
// Puts, erases and batches, and room in memory for their values.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "arch/crc32c.hpp"
#include "base/text.hpp"
#include "store/engine/engine.hpp"
#include "store/engine/engine_impl.hpp"
#include "store/engine/record.hpp"

namespace pl::store {
namespace {

constexpr std::uint64_t kSpillBytes = 128 << 10;  // minimum to write at a time, if there is that much to write
// longer values leave the cache before they are read again
constexpr std::uint64_t kNonTemporalFrom = std::uint64_t{8} << 20;

// Copies the value's bytes and computes their checksum in one pass; reports progress.
std::uint32_t fill(value& target, std::span<const std::byte> source, fill_progress* progress = nullptr) {
  const bool non_temporal = source.size() >= kNonTemporalFrom;
  std::uint32_t crc = 0;
  std::uint64_t offset = 0;  // in the value
  for (std::span<std::byte> piece : target.spans()) {
    while (!piece.empty()) {
      const std::size_t size = std::min<std::uint64_t>(piece.size(), kFillStepBytes - offset % kFillStepBytes);
      crc = arch::crc32c_copy(piece.data(), source.data() + offset, size, crc, non_temporal);
      piece = piece.subspan(size);
      offset += size;
      if (progress != nullptr) progress->reach(offset);
    }
  }
  return crc;
}

failure of_item(const batch_item& item) {
  return failure{item.error, item.message.empty() ? "store: as it was before" : item.message};
}

// The key behind whose unit others may wait, or an empty one.
std::string ordered_key(const commit_unit& unit) { return unit.is_ordered ? unit.operations.front().full : std::string(); }

}  // namespace

status compare_checksum(const commit_unit& unit) {
  const operation& op = unit.operations.front();
  if (!unit.expected_crc || *unit.expected_crc == op.made->crc) return {};
  return failure{EBADMSG, format("store: key %s: the value that arrived has checksum 0x%08x, its writer says 0x%08x",
                                 shown(key_of(op.full)).c_str(), op.made->crc, *unit.expected_crc)};
}

status check_request(const request_key& request) {
  if (request.client != 0 && request.sequence == 0) return failure{EINVAL, "store: a client's requests are numbered from 1"};
  return {};
}

std::function<void(commit_unit&)> answer_put(engine::impl& owner, completion<put_result> done) {
  return [&state = owner.state, done = std::move(done)](commit_unit& unit) {
    const operation& op = unit.operations.front();
    if (unit.failed || op.outcome.error != 0) {
      count(state.failed);
      return done(unit.failed ? *unit.failed : of_item(op.outcome));
    }
    count(state.puts);
    count(state.put_bytes, op.made->length_bytes);
    done(put_result{op.outcome.version, op.made->crc, unit.reached, unit.repeated});
  };
}

// ---- Room
// --------------------------------------------------------------------------------------------------------------------

result<value_ref> engine::impl::make_value(std::uint64_t length_bytes, deadline_t deadline, placement place) {
  const std::uint64_t limit = max_in_memory();
  if (length_bytes > limit)
    return failure{EFBIG, format("store: %llu bytes do not fit into memory as one value; the limit is %llu (half of the "
                                 "arena of %s); longer ones are put and got whole, through the socket",
                                 static_cast<unsigned long long>(length_bytes), static_cast<unsigned long long>(limit),
                                 format_size(memory->info().size_bytes).c_str())};
  value_ref made = value::make(*home, length_bytes);
  for (;;) {
    const std::uint64_t seen = memory->releases();
    if (auto pieces = memory->allocate(length_bytes, place)) {
      made->set_segments(*pieces);
      made->is_sole_copy_held = place.sole_copy;
      return made;
    }
    const bool of_lasting = place.sole_copy && memory->is_sole_copy_full(length_bytes);
    const bool small = length_bytes <= store::arena::kSlotBytes;
    if (make_room(length_bytes, !of_lasting ? victims::any : small ? victims::small_sole_copy : victims::sole_copy))
      continue;
    if (memory->releases() != seen) continue;
    if (deadline == kNoWait || !memory->wait_for_release(seen, deadline))
      return failure{
          ENOSPC, format("store: no room for %llu bytes in the arena of %s: all of it is pinned, granted or being written",
                         static_cast<unsigned long long>(length_bytes), format_size(memory->info().size_bytes).c_str())};
  }
}

bool engine::impl::make_room(std::uint64_t bytes, victims candidates) {
  std::uint64_t evicted = 0;
  bool any = false;
  // Caches give way first, except for the last quarter of their share, which goes only when nothing else can.
  if (candidates == victims::any && evict_caches(bytes, false)) return true;
  // Two rounds, because the first may find only recently used values.
  for (std::size_t i = 0; i < 2 * table::kShards && evicted < bytes; ++i)
    any =
        evict_from(values->shard_at(evict_next.fetch_add(1, std::memory_order_relaxed)), bytes, candidates, evicted) || any;
  return any || (candidates == victims::any && evict_caches(bytes, true));
}

bool engine::impl::evict_from(table::shard& shard, std::uint64_t bytes, victims candidates, std::uint64_t& evicted) {
  // The visit is short because it holds the shard's lock. Values that must be written before they can go are written
  // together: many small ones cost little more than one, and the next puts find room without waiting.
  constexpr int kMaxVisits = 32, kSkips = 4096;
  std::vector<value_ref> gone;  // released after the lock
  std::vector<victim> to_spill;
  {
    std::lock_guard lock(shard.mutex);
    auto& recent = shard.list_of(candidates == victims::small_sole_copy);
    entry* next = recent.last();
    int skips = 0;
    std::uint64_t found = 0;
    for (int visited = 0; visited < kMaxVisits && next != nullptr && evicted + found < std::max(bytes, kSpillBytes);
         ++visited) {
      entry& key_entry = *std::exchange(next, recent_list::newer(*next));
      // Values in use stay, and do not count as visited.
      const bool in_use = key_entry.committing || key_entry.loading || key_entry.current.use_count() != 1;
      if (in_use || (candidates == victims::sole_copy && !key_entry.current->is_sole_copy_held)) {
        if (++skips < kSkips) --visited;
        continue;
      }
      if (key_entry.is_volatile) {
        found += key_entry.current->length_bytes;
        to_spill.push_back({std::string(key_entry.key()), key_entry.current});
        continue;
      }
      if (evicted + found >= bytes) break;  // values that need no write are not evicted ahead of need
      evicted += key_entry.current->length_bytes;
      gone.push_back(key_entry.current);
      shard.set_current(key_entry, nullptr);
      shard.drop_if_empty(key_entry);
    }
  }
  for (const value_ref& stored : gone) {
    count(state.evictions);
    count(state.evicted_bytes, stored->length_bytes);
  }
  const bool dropped = !gone.empty();
  gone.clear();
  const std::uint64_t spilled = to_spill.empty() ? 0 : spill(std::move(to_spill));
  evicted += spilled;
  return dropped || spilled != 0;
}

// Writes volatile values that must leave memory to disk, for the lifetime of the process. Returns the bytes freed.
std::uint64_t engine::impl::spill(std::vector<victim> leaving) {
  std::vector<value_ref> copies;             // copies on disk, in the victims' order
  const block_buffer apart(leaving.size());  // values that share a block in memory get one of their own on disk
  if (!apart) return 0;
  std::vector<block_io> blocks;
  for (const victim& one : leaving) {
    auto found = space->allocate(one.stored->length_bytes);
    while (found.code() == ENOSPC && one.stored->cache() == nullptr && give_up_cached_extents(one.stored->length_bytes))
      found = space->allocate(one.stored->length_bytes);
    if (!found) break;
    const value& source = *one.stored;
    value_ref moved = value::make(*home, source.length_bytes);
    moved->take_identity(source);
    moved->set_on_disk(std::move(*found));
    moved->owns_extents = true;
    auto memory_of = source.spans();
    if (source.length_bytes <= store::arena::kSlotBytes) {
      const std::span<std::byte> block = apart.block(copies.size());
      std::memcpy(block.data(), memory_of.front().data(), source.length_bytes);
      std::memset(block.data() + source.length_bytes, 0, block.size() - source.length_bytes);
      memory_of = {block};
    }
    const auto theirs = space->blocks(moved->on_disk(), memory_of);
    blocks.insert(blocks.end(), theirs.begin(), theirs.end());
    copies.push_back(std::move(moved));
  }
  if (copies.empty()) return 0;
  if (status written = files->write(blocks); !written) {
    state.note(written.error());
    return 0;
  }
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < copies.size(); ++i)
    if (put_in_place_of(leaving[i], std::move(copies[i]))) bytes += leaving[i].stored->length_bytes;
  return bytes;
}

bool engine::impl::put_in_place_of(const victim& old, value_ref moved) {
  table::shard& shard = values->shard_of(old.full);
  std::lock_guard lock(shard.mutex);
  entry* key_entry = shard.find(old.full);
  // The value was erased, replaced or read meanwhile, so it stays.
  if (key_entry == nullptr || key_entry->current != old.stored || key_entry->committing || key_entry->loading ||
      key_entry->current.use_count() != 2)
    return false;
  moved->user_flags = old.stored->user_flags.load();
  shard.set_current(*key_entry, std::move(moved));
  count(state.evictions);
  count(state.spilled_bytes, old.stored->length_bytes);
  if (pool_cache* const cache = old.stored->cache()) count(cache->spilled);
  return true;
}

// ---- The way of a unit
// -----------------------------------------------------------------------------------------------------------

void engine::impl::give_up(unit_ref unit, const failure& reason) {
  const std::string full = ordered_key(*unit);
  for (operation& op : unit->operations) op.made.reset();
  unit->failed = reason;
  unit->done(*unit);
  go_on_behind(full);
}

void engine::impl::go_on_behind(const std::string& full) {
  if (full.empty()) return;
  if (unit_ref next = order.leave(full)) submit(std::move(next));
}

void engine::impl::submit(unit_ref unit) {
  if (status able = state.writable(); !able) return give_up(std::move(unit), able.error());
  if (status room = make_key_room(*unit); !room) return give_up(std::move(unit), room.error());
  const pool_ref cache = unit->pool && unit->pool->cache ? unit->pool : nullptr;
  if (apply_in_memory(*unit)) {
    unit->done(*unit);
    if (cache) trim_cache(*cache, 0);
    return;
  }
  if (unit->crc_missing) return write_beside_checksum(std::move(unit), {});
  write_extents_then_commit(std::move(unit));
}

// The disk writes the value while its checksum is computed and the bytes `to_copy` are copied step by step; each step
// is written once it is copied. Whichever side ends last submits the unit.
void engine::impl::write_beside_checksum(unit_ref unit, std::span<const std::byte> to_copy) {
  struct meeting {
    std::atomic<int> missing{2};
    unit_ref unit;
    status written;
  };
  const auto both = std::make_shared<meeting>();
  value_ref made = unit->operations.front().made;
  const bool crc_missing = unit->crc_missing;
  both->unit = std::move(unit);
  const auto coming = to_copy.empty() ? nullptr : std::make_shared<fill_progress>();
  const auto arrive = [this](meeting& joined) {
    if (joined.missing.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    unit_ref back = std::move(joined.unit);
    if (joined.written) joined.written = compare_checksum(*back);
    if (joined.written) return write_extents_then_commit(std::move(back));
    give_up(std::move(back), joined.written.error());
  };
  writer->enqueue(
      made,
      [both, arrive](status written) {
        both->written = std::move(written);
        arrive(*both);
      },
      coming);
  const std::uint32_t crc = coming ? fill(*made, to_copy, coming.get()) : crc_of(*made);
  if (crc_missing) made->crc = crc;
  made.reset();
  arrive(*both);
}

void engine::impl::write_extents_then_commit(unit_ref unit) {
  for (operation& op : unit->operations) {
    if (!op.made || !gets_extents(*unit, *op.made) || !op.made->on_disk().empty()) continue;
    // One value at a time, because a batch has few large values.
    const bool may_be_small = !is_large(op.made->length_bytes, unit->level);
    auto shared = std::make_shared<unit_ref>(std::move(unit));
    return writer->enqueue(
        op.made,
        [this, shared, may_be_small](status written) {
          unit_ref back = std::move(*shared);
          if (written.code() == ENOSPC && may_be_small) back->is_of_long_run = false;
          else if (!written) return give_up(std::move(back), written.error());
          write_extents_then_commit(std::move(back));
        },
        nullptr, may_be_small);
  }
  if (options.on_point) options.on_point("put.extents-durable");
  const std::string full = ordered_key(*unit);
  commits->enqueue(std::move(unit));
  go_on_behind(full);
}

// ---- Calls
// ------------------------------------------------------------------------------------------------------------------------

void engine::put_async(pool_id pool, std::string_view key, std::span<const std::byte> value, const put_options& options,
                       completion<put_result> done) {
  auto found = impl_->need_pool(pool);
  if (!found) return done(std::move(found).error());
  if (status good = impl_->check_key(key); !good) return done(good.error());
  if (status good = check_given(options.level); !good) return done(good.error());
  if (status good = check_request(options.request); !good) return done(good.error());
  if (status able = impl_->state.writable(); !able) return done(able.error());
  const durability level = (*found)->level(options.level);
  if (status good = impl_->check_cached_put(**found, level, options.ttl_ms, value.size()); !good) return done(good.error());
  // The committer decides on copies; a large value might be written to disk in vain.
  if (options.copy.version == 0 && impl_->is_large(value.size(), level)) {
    if (status fits = impl_->check_owner(**found, key, options.owner, value.size(), options.request); !fits)
      return done(impl_->why_refused(**found, key, options.precondition, options.expected_version, fits.error()));
  }
  impl_->trim_cache(**found, value.size());
  auto made = impl_->make_value(value.size(), options.deadline, impl_->place_of(**found, level));
  if (!made) return done(std::move(made).error());
  (*made)->user_flags = options.user_flags;
  (*made)->join_cache((*found)->cache, options.ttl_ms);
  (*made)->join_owner(options.owner);
  auto unit = std::make_unique<commit_unit>();
  unit->pool = *found;
  unit->level = level;
  unit->request = options.request;
  unit->operations.push_back(operation{operation::kind::put,
                                       full_key(pool, key),
                                       std::move(*made),
                                       options.precondition,
                                       options.expected_version,
                                       0,
                                       {},
                                       options.copy});
  unit->done = answer_put(*impl_, std::move(done));
  unit->crc_missing = !options.known_crc;
  store::value& target = *unit->operations.front().made;
  if (options.known_crc) target.crc = *options.known_crc;
  // A value of one step would be copied before a thread that writes it is awake.
  if (impl_->is_large(value.size(), unit->level) && value.size() > kFillStepBytes)
    return impl_->write_beside_checksum(std::move(unit), value);
  const std::uint32_t crc = fill(target, value);
  if (std::exchange(unit->crc_missing, false)) target.crc = crc;
  impl_->submit(std::move(unit));
}

result<put_result> engine::put(pool_id pool, std::string_view key, std::span<const std::byte> value,
                               const put_options& options) {
  if (status good = check_given(options.level); !good) return std::move(good).error();
  if (value.size() > impl_->max_in_memory()) return impl::put_in_windows(*this, pool, key, value, options);
  return wait_for<put_result>([&](completion<put_result> done) { put_async(pool, key, value, options, std::move(done)); });
}

void engine::erase_async(pool_id pool, std::string_view key, const erase_options& options, completion<erase_result> done) {
  auto found = impl_->need_pool(pool);
  if (!found) return done(std::move(found).error());
  if (status good = impl_->check_key(key); !good) return done(good.error());
  if (status good = check_given(options.level); !good) return done(good.error());
  if (status good = check_request(options.request); !good) return done(good.error());
  auto unit = std::make_unique<commit_unit>();
  unit->pool = *found;
  unit->level = (*found)->level(options.level);
  unit->request = options.request;
  unit->operations.push_back(operation{operation::kind::erase,
                                       full_key(pool, key),
                                       nullptr,
                                       options.precondition,
                                       options.expected_version,
                                       0,
                                       {},
                                       options.copy});
  unit->done = [&state = impl_->state, done = std::move(done)](commit_unit& finished) {
    const batch_item& item = finished.operations.front().outcome;
    if (finished.failed || item.error != 0) {
      count(state.failed);
      return done(finished.failed ? *finished.failed : of_item(item));
    }
    count(state.erases);
    done(erase_result{item.version, finished.reached, finished.repeated});
  };
  impl_->submit(std::move(unit));
}

result<erase_result> engine::erase(pool_id pool, std::string_view key, const erase_options& options) {
  return wait_for<erase_result>([&](completion<erase_result> done) { erase_async(pool, key, options, std::move(done)); });
}

status engine::set_user_flags(pool_id pool, std::string_view key, std::uint32_t flags) {
  auto found = impl_->need_pool(pool);
  if (!found) return std::move(found).error();
  if (status good = impl_->check_key(key); !good) return good;
  auto unit = std::make_unique<commit_unit>();
  unit->pool = *found;
  unit->level = (*found)->level(durability::pool_default);
  unit->operations.push_back(
      operation{operation::kind::set_flags, full_key(pool, key), nullptr, condition::if_present, 0, flags, {}});
  std::promise<status> answer;
  auto answered = answer.get_future();
  unit->done = [&](commit_unit& finished) {
    const batch_item& item = finished.operations.front().outcome;
    if (finished.failed) answer.set_value(*finished.failed);
    else answer.set_value(item.error == 0 ? status() : status(of_item(item)));
  };
  impl_->submit(std::move(unit));
  return answered.get();
}

void engine::batch_async(pool_id pool, std::span<const batch_operation> operations, const batch_options& options,
                         completion<batch_result> done) {
  auto found = impl_->need_pool(pool);
  if (!found) return done(std::move(found).error());
  if (operations.empty() || operations.size() > kMaxBatchOperations)
    return done(failure{EINVAL, format("store: a batch has 1 to %zu operations", kMaxBatchOperations)});
  if (status good = check_given(options.level); !good) return done(good.error());
  if (status good = check_request(options.request); !good) return done(good.error());
  auto unit = std::make_unique<commit_unit>();
  unit->pool = *found;
  unit->level = (*found)->level(options.level);
  unit->request = options.request;
  unit->atomic = options.atomic;
  if (unit->atomic && unit->level == durability::volatile_)
    return done(failure{ENOTSUP, "store: a batch of volatile values cannot be atomic"});
  std::uint64_t bytes = 0;
  for (const batch_operation& one : operations) bytes += one.value.size();
  constexpr std::uint64_t kAtomicBytes = std::uint64_t{64} << 20;
  if (unit->atomic && bytes > kAtomicBytes)
    return done(failure{EFBIG, "store: an atomic batch has at most 64 MiB of values"});
  for (const batch_operation& one : operations) {
    if (status good = impl_->check_key(one.key); !good) return done(good.error());
    const bool putting = one.action == batch_operation::kind::put;
    operation made{putting ? operation::kind::put : operation::kind::erase,
                   full_key(pool, one.key),
                   nullptr,
                   one.precondition,
                   one.expected_version,
                   0,
                   {}};
    if (putting) {
      if (status good = impl_->check_cached_put(**found, unit->level, one.ttl_ms, one.value.size()); !good)
        return done(good.error());
      impl_->trim_cache(**found, one.value.size());
      auto space = impl_->make_value(one.value.size(), kNoWait, impl_->place_of(**found, unit->level));
      if (!space) return done(std::move(space).error());
      (*space)->crc = fill(**space, one.value);
      (*space)->user_flags = one.user_flags;
      (*space)->join_cache((*found)->cache, one.ttl_ms);
      (*space)->join_owner(options.owner);
      made.made = std::move(*space);
    }
    unit->operations.push_back(std::move(made));
  }
  unit->done = [&state = impl_->state, done = std::move(done)](commit_unit& finished) {
    if (finished.failed) {
      count(state.failed);
      return done(*finished.failed);
    }
    batch_result made;
    made.reached = finished.reached;
    made.repeated = finished.repeated;
    for (operation& op : finished.operations) {
      count(op.outcome.error != 0 ? state.failed : op.made ? state.puts : state.erases);
      made.items.push_back(std::move(op.outcome));
    }
    done(std::move(made));
  };
  impl_->submit(std::move(unit));
}

result<batch_result> engine::batch(pool_id pool, std::span<const batch_operation> operations, const batch_options& options) {
  return wait_for<batch_result>(
      [&](completion<batch_result> done) { batch_async(pool, operations, options, std::move(done)); });
}

}  // namespace pl::store
