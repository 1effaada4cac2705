// SPDX-License-Identifier: Apache-2.0
// The engine's parts and how they are connected. engine.cpp opens, closes and manages pools. engine_write.cpp,
// engine_memory.cpp, engine_grants.cpp, engine_runs.cpp, engine_read.cpp and engine_find.cpp implement the calls;
// engine_check.cpp checks the store.
//
// Lock order: a requests group, a table shard, then pool names, space, arena. No thread holds two shards, except for
// runs (engine_runs.cpp), which lock several in ascending order.
#pragma once

#include <algorithm>
#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "store/engine/arena.hpp"
#include "store/engine/committer.hpp"
#include "store/engine/disk.hpp"
#include "store/engine/engine.hpp"
#include "store/engine/extent_writer.hpp"
#include "store/engine/extents.hpp"
#include "store/engine/health.hpp"
#include "store/engine/index.hpp"
#include "store/engine/key_order.hpp"
#include "store/engine/pools.hpp"
#include "store/engine/requests.hpp"
#include "store/engine/sessions.hpp"
#include "store/engine/table.hpp"
#include "store/engine/value_stream.hpp"
#include "store/engine/workers.hpp"

namespace pl::store {

class engine::impl {
 public:
  explicit impl(engine_options made) : options(std::move(made)) {}
  ~impl();

  status open();
  status close();
  status sync_at_close();

  // ---- engine.cpp
  result<pool_ref> need_pool(pool_id id) const;
  status check_key(std::string_view key) const;
  std::string name_of_owner(owner_id id) const;
  // EDQUOT if a put of this size by this owner would be refused right now. Reads the index only if the quota looks
  // exceeded. Passes a request that was done before.
  status check_owner(const pool_state& pool, std::string_view key, owner_id owner, std::uint64_t length_bytes,
                     const request_key& request);
  // For a put that a quota refuses before its commit: the reason that the commit would give, which checks the condition
  // first.
  failure why_refused(const pool_state& pool, std::string_view key, condition precondition, version_t expected_version,
                      failure by_quota);

  // ---- engine_write.cpp
  // Finds memory for a value, evicting and waiting if necessary. EFBIG, ENOSPC.
  result<value_ref> make_value(std::uint64_t length_bytes, deadline_t deadline, placement place);
  // Where values of this pool and level are placed.
  placement place_of(const pool_state& pool, durability level) const {
    // A cache may drop its values without writing them.
    return {pool.is_in_private_arena.load(std::memory_order_relaxed), level == durability::volatile_ && !pool.cache, false};
  }
  // Evicts until about this much is free or nothing more can go. Returns false if nothing was evicted.
  enum class victims : std::uint8_t { any, sole_copy, small_sole_copy };  // any: all but small volatile ones
  bool make_room(std::uint64_t bytes, victims candidates);
  // Applies the unit at once if the key's current state is in memory and stays there; otherwise passes it to the extent
  // writer and the committer.
  void submit(unit_ref unit);
  void give_up(unit_ref unit, const failure& reason);  // frees its space, then answers it
  // lets the next unit of the key in `order` proceed; does nothing for an empty key
  void go_on_behind(const std::string& full);
  void write_extents_then_commit(unit_ref unit);
  void write_beside_checksum(unit_ref unit, std::span<const std::byte> to_copy);
  status commit_now(unit_ref unit);  // blocking
  // Whether a value of this length and durability is stored in extents.
  bool is_large(std::uint64_t length_bytes, durability level) const {
    // A value that shares a block in memory cannot be written to disk from where it lies.
    const std::uint64_t small_bytes = std::max<std::uint64_t>(options.small_value_bytes, store::arena::kSlotBytes);
    return length_bytes > small_bytes && level != durability::volatile_;
  }
  bool gets_extents(const commit_unit& unit, const value& made) const {
    return unit.is_of_long_run || is_large(made.length_bytes, unit.level);
  }

  // ---- engine_cache.cpp
  std::shared_ptr<pool_cache> cache_for(const pool_info& pool) const;
  status check_terms(const pool_info& pool) const;
  // EINVAL: a cache holds only volatile values, and only a cache's values have a time to live. EFBIG: longer than the
  // cache.
  status check_cached_put(const pool_state& pool, durability level, std::uint64_t ttl_ms, std::uint64_t length_bytes) const;
  // Makes room within the pool's share for this many more bytes, and drops expired values. Does nothing for pools that
  // are no caches.
  void trim_cache(pool_state& pool, std::uint64_t length_bytes);
  // Evicts values of caches until about this much memory is free: from caches that hold more than a quarter of their
  // share, or from all with `to_the_last`. Returns false if nothing was evicted.
  bool evict_caches(std::uint64_t bytes, bool to_the_last);
  // Evicts values of caches from the disk until about this much of it is free. Returns false if nothing was evicted.
  bool give_up_cached_extents(std::uint64_t bytes);
  // Allocates extents for `size_bytes` of a value whose full size, `whole_bytes`, must fit. Evicts values of caches if
  // needed.
  result<std::vector<segment>> allocate_extents(std::uint64_t size_bytes, std::uint64_t whole_bytes, std::size_t max_pieces);
  void drop_expired(pool_state& pool);
  // Drops an expired entry unless somebody is about to change it. Returns true if it is gone. Precondition: the shard's
  // lock is held.
  bool drop_if_expired(table::shard& shard, entry* key_entry, pool_state& pool);

  // Calls engine_options::on_change. Precondition: the lock of the key's shard is held, so that its changes are
  // reported in their order.
  void tell(change kind, std::string_view full, version_t version, std::uint64_t length_bytes = 0) const;

  // ---- engine_runs.cpp
  struct run_change;
  bool prepare_run(run_change& change);
  void apply_run(run_change& change);
  void commit_rest(session_id session, grant_id first, run_change& change, run_completion done);
  bool has_key_room(std::uint64_t more) const noexcept { return values->heap_bytes() + more <= options.key_memory_bytes; }

  // ---- engine_keys.cpp
  // ENOSPC: the unit puts volatile values, and keys already take all the memory they may.
  status make_key_room(const commit_unit& unit);
  void trim_keys(std::uint64_t limit);
  void forget_indexed(table::shard& shard, std::uint64_t limit);

  // ---- engine_grants.cpp
  // For the caller that owns the grant, which has been taken out of its session.
  enum class run_kind : std::uint8_t { none, small, long_ };  // long_: written together with the rest of its run
  void commit_grant(open_grant taken, const commit_options& given, completion<put_result> done,
                    run_kind of_run = run_kind::none);
  void submit_when_written(unit_ref unit, early_write early);

  // ---- value_stream.cpp
  std::uint64_t max_in_memory() const noexcept;
  // EAGAIN if the value is in memory or in the index.
  result<value_reader::source> find_on_disk(const std::string& full);
  result<std::shared_ptr<value_reader>> make_reader(pool_ref pool, const std::string& full, std::uint64_t offset_bytes,
                                                    std::uint64_t length_bytes, stream_slot_ref slot);
  result<std::shared_ptr<value_reader>> open_reader(const pool_ref& pool, const std::string& full,
                                                    const get_options& read_options);
  static result<put_result> put_in_windows(engine& store, pool_id pool, std::string_view key,
                                           std::span<const std::byte> bytes, const put_options& options);

  // ---- engine_find.cpp
  result<std::map<std::string, std::optional<find_page::found_value>>> gather_keys(pool_state& pool,
                                                                                   const std::string& first_key,
                                                                                   const std::string& prefix,
                                                                                   std::size_t limit);

  // ---- engine_read.cpp
  // Where a value lies, for messages; and the failure, which is counted, if its checksum differs from this one.
  std::string place_on_disk(const value& stored) const;
  status check_stored(const pool_state& pool, const std::string& full, const value& stored, std::uint32_t crc);
  // EBADMSG if the value's extent file is missing or truncated.
  status check_present(const pool_state& pool, const std::string& full, const value& stored);
  // Returns the current version, in memory. ENOENT.
  result<value_ref> acquire(const pool_state& pool, const std::string& full, deadline_t deadline);
  // Returns the value only if that needs no disk, otherwise null. Precondition: the lock of the key's shard is held.
  value_ref hold_cached(table::shard& shard, const pool_state& pool, std::string_view full, std::size_t hash);
  value_ref acquire_cached(const pool_state& pool, const std::string& full);
  // Whether the value lies in memory, in the part where its pool's values belong now.
  bool is_in_place(const pool_state& pool, const value& stored) const {
    return stored.in_memory() &&
           (stored.segments().empty() || memory->is_in_private_arena(stored.segments().span()) == pool.is_in_private_arena);
  }
  // Sets where the pool's values belong from now on. Values elsewhere leave.
  void place_pool(pool_state& pool);
  status verify(const pool_state& pool, const std::string& full, const value& stored);
  result<pinned_value> pin(session_id session, const pool_state& pool, const std::string& full,
                           const get_options& read_options, value_ref stored);
  result<value_info> stat(const std::string& full);
  result<get_result> get_in_windows(const pool_ref& pool, const std::string& full, std::span<std::byte> out,
                                    get_options read_options);
  placement read_place(const pool_state& pool, durability level) const;
  static pinned_value by_reader(std::shared_ptr<value_reader> reader);
  result<pinned_value> load_and_pin(session_id session, const pool_ref& pool, const std::string& full,
                                    const get_options& read_options);

  engine_options options;
  std::unique_ptr<disk> own_files;
  disk* files = nullptr;
  int lock_fd = -1;
  health state;
  store::owners writers;  // outlives the pools
  pools known;
  std::mutex pools_mutex;  // one change of the catalogue at a time
  pool_id last_pool = 0;
  std::string format_with_owners;  // committer::parts
  std::unique_ptr<store::arena> memory;
  std::string identity;
  std::unique_ptr<index> records;
  std::unique_ptr<extents> space;
  std::optional<value_storage> home;  // for values of memory and extents
  // Values in the table give back memory and extents when they are destroyed, so the table is destroyed before those
  // two.
  std::unique_ptr<table> values;
  sessions owners;
  std::unique_ptr<requests> remembered;
  std::unique_ptr<committer> commits;
  key_order order;
  std::unique_ptr<extent_writer> writer;
  std::unique_ptr<workers> helpers;
  std::atomic<bool> closed{false};
  std::atomic<std::size_t> evict_next{0};
  std::atomic<int> streams{0};  // value_stream.hpp
  // one early write at a time, so that the writer's other thread never waits for bytes
  std::atomic<bool> writes_early{false};

 private:
  status lock_folder();
  status read_format();
  void name_format_with_owners(store_format now);
  status read_catalogue(version_t& ceiling);
  using owned_counts = std::map<pool_id, std::vector<std::pair<owner_id, pool_counts>>>;
  status read_owner(std::string_view key, std::string_view raw, owned_counts& owned);
  status read_extents();
  status take_lost_extents(std::string_view full, const std::vector<segment>& pieces);
  void scale_to_disk();
  status check_room() const;
  // Makes the store read-only if its folder is gone or another one is in its place.
  status check_folder();
  // A change of a key that only memory has. Precondition: its shard's lock is held.
  struct memory_change {
    operation::kind type;
    pool_state& pool;
    std::string_view full;
    std::size_t hash;  // hash of `full`
    value_ref made;    // put: moved to the table, unless the change came too late
    condition precondition = condition::none;
    version_t expected_version = 0;
    std::uint32_t user_flags = 0;
    copy_of copy{};
    std::int64_t now_unix_ns = 0;
    version_t reserved_version = 0;  // 0: no version is reserved
    version_t version = 0;           // set when applied: the version that the operation reports
    value_ref replaced{};            // set when applied: release it after unlocking
  };
  bool apply_in_memory(commit_unit& unit);
  bool truth_in_memory(const entry* key_entry, const pool_state& pool, std::string_view full);
  status apply_one(table::shard& shard, entry* key_entry, memory_change& one);
  bool evict_from(table::shard& shard, std::uint64_t bytes, victims candidates, std::uint64_t& evicted);
  struct victim {
    std::string full;
    value_ref stored;
  };
  std::uint64_t spill(std::vector<victim> leaving);
  bool put_in_place_of(const victim& old, value_ref moved);
  std::uint64_t evict_cached(pool_state& pool, std::uint64_t bytes);
  std::uint64_t drop_taken(pool_state& pool, const pool_cache::candidate& taken, std::atomic<std::uint64_t>& counter);
  std::optional<victim> hold_taken(pool_state& pool, const pool_cache::candidate& taken);
  std::uint64_t spill_cached(pool_state& pool, const std::vector<pool_cache::candidate>& taken);
  result<value_ref> read_indexed(const pool_state& pool, const std::string& full, deadline_t deadline, bool& is_small);
  result<value_ref> read_extents_of(const pool_state& pool, const std::string& full, const value& source,
                                    deadline_t deadline);
  result<value_ref> copy_in_place(const pool_state& pool, const std::string& full, const value& source, deadline_t deadline);
};

status check_request(const request_key& request);
// EDQUOT if the value alone is longer than its pool's quota.
status check_pool_quota(const pool_state& pool, std::uint64_t length_bytes);
// Compares the writer's own checksum with that of the received bytes.
status compare_checksum(const commit_unit& unit);
// Checksum of a value that lies in memory.
std::uint32_t crc_of(const value& stored);
// Builds the completion that answers a put from its unit, and counts the put.
std::function<void(commit_unit&)> answer_put(engine::impl& owner, completion<put_result> done);

// Calls an _async function and waits for its answer.
template <class T, class Call>
result<T> wait_for(const Call& call) {
  std::promise<result<T>> answer;
  auto answered = answer.get_future();
  call([&](result<T> got) { answer.set_value(std::move(got)); });
  return answered.get();
}

}  // namespace pl::store
