// SPDX-License-Identifier: Apache-2.0
// Grants and pins of many values by one call (runs.hpp). The work that a single call does for its value is done here in
// passes over all values: checks and hashes without a lock, then memory, then the table shard by shard.
#include <algorithm>
#include <array>
#include <cerrno>
#include <numeric>
#include <utility>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "store/engine/engine.hpp"
#include "store/engine/engine_impl.hpp"
#include "store/engine/record.hpp"

namespace pl::store {
namespace {

// Durable values of one run are written to extents side by side, with one sync. The log would write them twice (to its
// own file, and to the table it is merged into), each at 1 GB/s or less. A few small values are faster in the log,
// whose sync they need anyway.
constexpr std::uint64_t kLongRunBytes = 256 << 10;
bool fills_blocks(const value& made) { return made.length_bytes >= kBlockBytes; }

constexpr std::size_t kTogether = 16;  // values whose shards are locked at the same time

// The numbers of a run's values, ordered by shard. Values of one shard keep their order, and so do the changes of a
// key.
class shard_order {
 public:
  explicit shard_order(std::span<const std::size_t> hashes) : numbers_(hashes.size()) {
    for (const std::size_t hash : hashes) ++ends_[hash % table::kShards];
    std::partial_sum(ends_.begin(), ends_.end(), ends_.begin());
    for (std::size_t i = hashes.size(); i > 0; --i)
      numbers_[--ends_[hashes[i - 1] % table::kShards]] = static_cast<std::uint32_t>(i - 1);
  }
  // Calls `apply` with the shard and the number of each value, with the shard's lock held. The table entries of keys
  // are scattered in memory, 0.1 us away each, so they are prefetched for many keys at a time, in steps: an address is
  // known only when the previous load has completed. For that, the locks of several shards are taken together, in
  // ascending order; nothing else takes more than one.
  template <class Apply>
  void each(table& values, std::span<const std::size_t> hashes, std::size_t together, const Apply& apply) const {
    std::vector<std::unique_lock<short_mutex>> locks;
    locks.reserve(together);
    for (std::size_t shard = 0; shard < table::kShards;) {
      const std::size_t first = shard, begin = ends_[shard];
      do {
        if (ends_[shard] != end_of(shard)) locks.emplace_back(values.shard_at(shard).mutex);
        ++shard;
      } while (shard < table::kShards && end_of(shard) - begin <= together);
      const auto group = std::span(numbers_).subspan(begin, end_of(shard - 1) - begin);
      if (group.size() > 1) fetch(values, group, hashes);
      for (std::size_t one = first; one < shard; ++one)
        for (std::size_t i = ends_[one]; i < end_of(one); ++i) apply(values.shard_at(one), numbers_[i]);
      locks.clear();
    }
  }

 private:
  std::size_t end_of(std::size_t shard) const noexcept {
    return shard + 1 < table::kShards ? ends_[shard + 1] : numbers_.size();
  }
  static void fetch(table& values, std::span<const std::uint32_t> numbers, std::span<const std::size_t> hashes) {
    const auto entries_of = [&](std::uint32_t i) -> const entry_map& { return values.shard_with(hashes[i]).entries; };
    for (const std::uint32_t i : numbers) entries_of(i).fetch_bucket(hashes[i]);
    for (const std::uint32_t i : numbers) entries_of(i).fetch_entry(hashes[i]);
    for (const std::uint32_t i : numbers) entries_of(i).fetch_value(hashes[i]);
  }

  std::array<std::size_t, table::kShards> ends_{};  // end of each shard's part; its start until the order is built
  std::vector<std::uint32_t> numbers_;
};

}  // namespace

// ---- Grants --------------------------------------------------------------------------------------------------------------

result<granted_run> engine::begin_run(session_id session, pool_id pool, std::span<const run_put> puts,
                                      const begin_options& options) {
  auto found = impl_->need_pool(pool);
  if (!found) return std::move(found).error();
  if (options.from_current) return failure{EINVAL, "store: a run of grants cannot start from current values"};
  if (status able = impl_->state.writable(); !able) return std::move(able).error();
  const pool_ref& in = *found;
  const owner_state* const owner = in->cache || !options.checks_quotas ? nullptr : impl_->writers.find(options.owner);
  const bool has_owner_quota = owner != nullptr && owner->has_quota();
  const durability level = in->level(options.level), own_level = in->level(durability::pool_default);
  const placement place = impl_->place_of(*in, level);
  const placement small_place = impl_->place_of(*in, durability::volatile_);  // at whatever level they are committed

  granted_run given;
  given.values.resize(puts.size());
  run_of_grants run;
  run.pool = in;
  run.values.resize(puts.size());
  std::vector<std::uint64_t> sizes(puts.size()), small_sizes(puts.size());  // 0: not of this kind
  std::uint64_t all_bytes = 0;
  std::size_t name_bytes = 0;
  const auto check = [&](std::size_t i) -> status {
    const run_put& one = puts[i];
    if (!one.is_wanted) return failure{ECANCELED, "store: it is not wanted"};
    if (status good = impl_->check_key(one.key); !good) return good;
    status fits = options.checks_quotas ? check_pool_quota(*in, one.length_bytes) : status();
    if (fits && has_owner_quota) {
      request_key request = options.request;
      if (!request.empty()) request.sequence += i;
      fits = impl_->check_owner(*in, one.key, options.owner, one.length_bytes, request);
    }
    if (!fits) return impl_->why_refused(*in, one.key, one.precondition, one.expected_version, std::move(fits).error());
    return impl_->check_cached_put(*in, own_level, 0, one.length_bytes);
  };
  const std::uint64_t limit = impl_->max_in_memory();
  for (std::size_t i = 0; i < puts.size(); ++i) {
    if (status good = check(i); !good) {
      given.values[i].refusal = std::move(good).error();
      continue;
    }
    name_bytes += sizeof(pool_id) + puts[i].key.size();
    all_bytes += puts[i].length_bytes;
    if (puts[i].length_bytes <= limit)
      (puts[i].length_bytes <= arena::kSlotBytes ? small_sizes : sizes)[i] = puts[i].length_bytes;
  }
  impl_->trim_cache(*in, all_bytes);
  std::vector<segment> pieces(puts.size()), small_pieces(puts.size());
  impl_->memory->allocate_many(sizes, place, pieces);
  impl_->memory->allocate_many(small_sizes, small_place, small_pieces);
  run.names.reserve(name_bytes);
  for (std::size_t i = 0; i < puts.size(); ++i) {
    granted_run::granted& answer = given.values[i];
    if (!answer.is_granted()) continue;
    const std::uint64_t length = puts[i].length_bytes;
    const bool is_small = length <= arena::kSlotBytes;
    const segment& piece = is_small ? small_pieces[i] : pieces[i];
    run_of_grants::one& mine = run.values[i];
    if (piece.size_bytes == length) {
      mine.made = value::make(*impl_->home, length);
      if (length != 0) mine.made->set_segments({&piece, 1});
      mine.made->is_sole_copy_held = (is_small ? small_place : place).sole_copy;
    } else {
      auto made = impl_->make_value(length, options.deadline, is_small ? small_place : place);
      if (!made) {
        answer.refusal = std::move(made).error();
        continue;
      }
      mine.made = *std::move(made);
    }
    answer.segments = mine.made->segments().span();
    mine.name_offset = static_cast<std::uint32_t>(run.names.size());
    append_ordered(run.names, pool);
    run.names += puts[i].key;
    mine.name_bytes = static_cast<std::uint32_t>(run.names.size()) - mine.name_offset;
    ++run.left;
  }
  if (run.left == 0) return given;
  given.first = impl_->owners.add_run(session, std::move(run));
  if (given.first == 0) return failure{EBADF, "store: no such session"};
  return given;
}

// ---- Commits -------------------------------------------------------------------------------------------------------------

struct engine::impl::run_change {
  run_of_grants& run;
  std::span<const run_commit> items;
  const run_options& given;
  std::vector<committed_value>& outcomes;
  std::vector<bool> is_done;  // values that were put here
  bool is_settled(std::size_t i) const { return outcomes[i].refusal.code != 0 || (!is_done.empty() && is_done[i]); }
};

// Applies the changes of keys that only memory has. What stays in the run takes the long way.
void engine::impl::apply_run(run_change& change) {
  run_of_grants& run = change.run;
  pool_state& pool = *run.pool;
  const std::size_t count = run.values.size();
  std::optional<requests::turn> turn;
  if (!change.given.put.request.empty()) {
    auto taken = remembered->lock_client(change.given.put.request.client);
    if (!taken) return;
    turn.emplace(*std::move(taken));
    turn->fetch(change.given.put.request.sequence, count);
  }
  std::vector<std::size_t> hashes(count);
  for (std::size_t i = 0; i < count; ++i) hashes[i] = entry_map::hash_of(run.name_of(run.values[i]));
  // Values replaced or not put: released after the locks.
  const auto gone_here = std::make_shared<std::vector<value_ref>>();
  std::vector<value_ref>& gone = *gone_here;
  gone.reserve(2 * count);
  change.is_done.resize(count);
  std::uint64_t puts = 0, put_bytes = 0, failed = 0;
  // One object serves all values, because constructing it costs as much as the lookup.
  memory_change one{operation::kind::put, pool, {}, 0, {}, {}, 0, 0, change.given.put.copy, unix_now_ns()};
  const version_t first_version = one.copy.version == 0 ? commits->reserve_versions(count) : 0;
  const auto apply = [&](table::shard& shard, std::size_t i) {
    run_of_grants::one& value = run.values[i];
    if (!value.made) return;
    const std::string_view full = run.name_of(value);
    const std::uint64_t sequence = change.given.put.request.sequence + i;
    // The committer may be working on a request that was sent again, or its outcome may be remembered.
    if (turn && (shard.is_unlogged(full) || !turn->is_new(sequence))) return;
    entry* key_entry = shard.find(full, hashes[i]);
    if (drop_if_expired(shard, key_entry, pool)) key_entry = nullptr;
    if (!truth_in_memory(key_entry, pool, full)) return;
    const run_commit& item = change.items[i];
    const std::uint64_t length_bytes = value.made->length_bytes;
    const std::uint32_t crc = value.made->crc;
    one.full = full, one.hash = hashes[i], one.made = std::move(value.made), one.version = 0;
    one.precondition = item.precondition, one.expected_version = item.expected_version;
    one.reserved_version = first_version == 0 ? 0 : first_version + i;
    committed_value& answer = change.outcomes[i];
    if (status done = apply_one(shard, key_entry, one); !done) {
      answer.refusal = std::move(done).error();
      ++failed;
    } else {
      change.is_done[i] = true;
      ++puts, put_bytes += length_bytes;
      answer.done = {one.version, crc, durability::volatile_};
      if (turn) turn->remember(sequence, durability::volatile_, item.request_group, one.version, crc);
    }
    for (value_ref* const each : {&one.replaced, &one.made})
      if (*each) gone.push_back(std::move(*each));
  };
  // If the index has to be asked for each key, locks are held too long to take several.
  shard_order(hashes).each(*values, hashes, pool.indexed_keys.load() == 0 ? kTogether : 1, apply);
  turn.reset();
  // A cache counts replaced values until they are released, and would evict others for them.
  if (change.given.afterwards && !pool.cache) change.given.afterwards([gone_here] { value_ref::reset_many(*gone_here); });
  else value_ref::reset_many(gone);
  pl::store::count(state.puts, puts);
  pl::store::count(state.put_bytes, put_bytes);
  pl::store::count(state.failed, failed);
}

// Prepares a value as commit_grant() does. Returns false if it cannot be applied as volatile, or not at once.
bool engine::impl::prepare_run(run_change& change) {
  run_of_grants& run = change.run;
  const pool_state& pool = *run.pool;
  const put_options& put = change.given.put;
  std::uint64_t key_bytes = 0;
  std::vector<segment> to_last;
  // Other threads allocated and filled the values: their cache lines come from other CPUs, so they are fetched
  // together.
  for (const run_of_grants::one& one : run.values)
    if (one.made) __builtin_prefetch(one.made.get(), 1);
  for (std::size_t i = 0; i < run.values.size(); ++i) {
    value_ref& made = run.values[i].made;
    if (!made) continue;
    const run_commit& item = change.items[i];
    const std::uint64_t ttl_ms = item.ttl_ms != 0 ? item.ttl_ms : put.ttl_ms;
    if (!check_cached_put(pool, durability::volatile_, ttl_ms, made->length_bytes)) return false;
    made->user_flags.store(item.user_flags, std::memory_order_relaxed);
    made->join_cache(pool.cache, ttl_ms);
    made->join_owner(put.owner);
    made->crc = change.given.take_crc ? item.crc32c : crc_of(*made);
    key_bytes += table::heap_bytes_of(run.name_of(run.values[i]));
    if (!pool.cache && !made->is_sole_copy_held)
      for (const segment& piece : made->segments()) to_last.push_back(piece);
  }
  if (!has_key_room(key_bytes)) return false;
  if (to_last.empty()) return true;
  if (!memory->mark_sole_copy(to_last)) return false;
  for (run_of_grants::one& one : run.values)
    if (one.made) one.made->is_sole_copy_held = true;
  return true;
}

// Commits what is left of the run as single grants.
void engine::impl::commit_rest(session_id session, grant_id first, run_change& change, run_completion done) {
  run_of_grants& run = change.run;
  std::vector<std::size_t> rest;
  for (std::size_t i = 0; i < run.values.size(); ++i)
    if (change.items[i].is_wanted && (run.values[i].made || !change.is_settled(i))) rest.push_back(i);
  if (rest.empty()) return done(std::move(change.outcomes));
  const auto answer = std::make_shared<run_answer>(std::move(change.outcomes), rest.size(), std::move(done));
  std::uint64_t block_bytes = 0;
  if (run.pool->level(change.given.put.level) != durability::volatile_)
    for (const std::size_t i : rest)
      if (const value_ref& made = run.values[i].made; made && fills_blocks(*made)) block_bytes += made->length_bytes;
  const bool is_long = block_bytes >= kLongRunBytes;
  std::optional<extent_writer::gathering> together;
  if (is_long) together.emplace(*writer);
  for (const std::size_t i : rest) {
    run_of_grants::one& value = run.values[i];
    auto one = value.made ? std::optional(open_grant{run.pool, std::string(run.name_of(value)), std::move(value.made)})
                          : owners.take_grant(session, first + i);
    const auto note = [answer, i](result<put_result> put) { answer->note(i, std::move(put)); };
    const auto kind = is_long && one && fills_blocks(*one->made) ? run_kind::long_ : run_kind::small;
    if (one) commit_grant(*std::move(one), options_of(change.given, change.items[i], i), note, kind);
    else note(failure{EBADF, "store: no such grant in this session"});
  }
}

void engine::commit_run(session_id session, grant_id first, std::span<const run_commit> items, const run_options& options,
                        run_completion done) {
  std::vector<committed_value> outcomes(items.size());
  const auto refuse = [&](const failure& reason) {
    for (std::size_t i = 0; i < items.size(); ++i)
      if (items[i].is_wanted) outcomes[i].refusal = reason;
    done(std::move(outcomes));
  };
  auto taken = impl_->owners.take_grants(session, first);
  if (!taken) return refuse({EBADF, "store: no such grants in this session"});
  run_of_grants& run = *taken;
  if (items.size() != run.values.size())
    return refuse({EINVAL, format("store: %zu grants are not committed as %zu", run.values.size(), items.size())});
  if (impl_->closed) return refuse({ESHUTDOWN, "store: closed"});
  if (status good = check_given(options.put.level); !good) return refuse(good.error());
  if (status good = check_request(options.put.request); !good) return refuse(good.error());
  std::vector<value_ref> unwanted;
  for (std::size_t i = 0; i < items.size(); ++i)
    if (!items[i].is_wanted && run.values[i].made) unwanted.push_back(std::move(run.values[i].made));
  value_ref::reset_many(unwanted);

  impl::run_change change{run, items, options, outcomes, {}};
  const bool is_volatile = run.pool->level(options.put.level) == durability::volatile_;
  if (is_volatile && impl_->state.writable() && impl_->prepare_run(change)) {
    impl_->apply_run(change);
    impl_->trim_cache(*run.pool, 0);
  }
  impl_->commit_rest(session, first, change, std::move(done));
}

status engine::abort_run(session_id session, grant_id first) {
  auto taken = impl_->owners.take_grants(session, first);
  if (!taken) return failure{EBADF, "store: no such grants in this session"};
  std::vector<value_ref> gone;
  for (run_of_grants::one& one : taken->values)
    if (one.made) gone.push_back(std::move(one.made));
  value_ref::reset_many(gone);
  return {};
}

// ---- Pins ----------------------------------------------------------------------------------------------------------------

result<pinned_run> engine::pin_run(session_id session, pool_id pool, std::span<const std::string_view> keys,
                                   const get_options& options) {
  auto found = impl_->need_pool(pool);
  if (!found) return std::move(found).error();
  const pool_ref& in = *found;
  pinned_run out;
  out.values.resize(keys.size());
  std::string names;
  std::vector<std::size_t> ends(keys.size()), hashes(keys.size());
  std::size_t name_bytes = 0;
  for (const std::string_view key : keys) name_bytes += sizeof(pool_id) + key.size();
  names.reserve(name_bytes);
  const auto name_of = [&](std::size_t i) {
    const std::size_t bytes = sizeof(pool_id) + keys[i].size();
    return std::string_view(names).substr(ends[i] - bytes, bytes);
  };
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (status good = impl_->check_key(keys[i]); !good) out.values[i].refusal = std::move(good).error();
    append_ordered(names, pool);
    names += keys[i];
    ends[i] = names.size();
    hashes[i] = entry_map::hash_of(name_of(i));
  }
  if (options.bypass_memory) return out;
  std::vector<value_ref> pinned(keys.size());
  shard_order(hashes).each(*impl_->values, hashes, kTogether, [&](table::shard& shard, std::size_t i) {
    if (out.values[i].refusal.code == 0) pinned[i] = impl_->hold_cached(shard, *in, name_of(i), hashes[i]);
  });
  std::uint64_t count_here = 0, bytes = 0;
  const bool verifies = options.verify || in->verifies_reads();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (!pinned[i]) continue;
    pinned_run::pinned& one = out.values[i];
    if (status same = verifies ? impl_->verify(*in, std::string(name_of(i)), *pinned[i]) : status(); !same) {
      one.refusal = std::move(same).error();
      pinned[i].reset();
      continue;
    }
    one.is_pinned = true;
    one.info = pinned[i]->info();
    one.segments = pinned[i]->segments().span();
    ++count_here;
    bytes += one.info.length_bytes;
  }
  if (count_here == 0) return out;
  out.first = impl_->owners.add_run(session, std::move(pinned));
  if (out.first == 0) return failure{EBADF, "store: no such session"};
  count(impl_->state.hits, count_here);
  count(in->hits, count_here);
  count(impl_->state.gets, count_here);
  count(impl_->state.get_bytes, bytes);
  return out;
}

status engine::unpin_run(session_id session, pin_id first) {
  if (!impl_->owners.drop_pins(session, first)) return failure{EBADF, "store: no such pins in this session"};
  return {};
}

}  // namespace pl::store
