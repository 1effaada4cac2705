// SPDX-License-Identifier: Apache-2.0
// The storage engine: pools of keys and versioned values in one data directory, without sockets. docs/store-engine.md says
// how values lie in memory and on disk and why a crash at any moment leaves nothing half done.
//
//   put ──copy──▶ arena (memfd) ──O_DIRECT──▶ extent files ─fdatasync─▶ RocksDB record (its log: one sync for a group) ─▶
//   visible begin_put ▶ the writer fills the arena itself (DMA of a GPU, another process) ▶ commit ─────┘
//
// What holds for all calls:
//   Threads      every call from any thread at any time, concurrently, also from completions (those must not block on the
//                engine: use the _async calls there). Exceptions are not thrown.
//   Visibility   a key's operations have one order. A put is seen by reads once it has reached its durability and before it
//   is
//                acknowledged; what a read has returned, no later read of the key takes back.
//   Readers      get a version and keep it: neither puts nor erases wait for them, nor change what they see.
//   Names        pool ids from open_pool/create_pool/find_pool. An unknown one is ENXIO.
//   Errors       errno and a sentence; types.hpp lists them. EIO makes the engine read-only (EROFS from then on): what a
//                failed fsync left in the page cache is not knowable, so it is never repeated. ENOSPC does not.
//   Blocking     calls that can wait for a disk are marked; the others only take short locks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/engine/runs.hpp"
#include "store/engine/types.hpp"

namespace pl::store {

class disk;          // disk.hpp: the files that the engine touches; tests put a recorder or a fault injector there
class value_reader;  // value_stream.hpp
class value_writer;

inline constexpr std::uint64_t kByDisk = ~std::uint64_t{0};  // a size that follows from the disk's

struct engine_options {
  std::string directory;  // made if absent (mode 0700); one engine at a time (a lock file, EBUSY)
  std::uint64_t arena_bytes = std::uint64_t{1} << 30;  // rounded up to chunk_bytes; memory is taken when touched
  std::uint64_t chunk_bytes = std::uint64_t{1} << 30;  // what clients map and register as a whole; >= 4 MiB, power of two
  bool huge_pages = false;                             // hugetlb pages for the arena; normal ones where there are none
  // Preallocated one after the other as values need them; of a new store, an older one keeps its own. By the disk: 1 GiB, of
  // a disk under 16 GiB a sixteenth, at least 4 MiB.
  std::uint64_t extent_file_bytes = kByDisk;
  std::uint64_t disk_limit_bytes = 0;  // of extent files; 0: as much as the disk has
  // Left free for the index: puts are ENOSPC below it. By the disk: 256 MiB, of a disk under 5 GiB a twentieth.
  std::uint64_t disk_reserve_bytes = kByDisk;
  std::uint32_t small_value_bytes = 32 * 1024;                // values up to here live in the index, <= 1 MiB
  std::uint64_t index_cache_bytes = std::uint64_t{64} << 20;  // RocksDB's block cache
  std::uint32_t group_wait_us = 0;                            // how long a lone durable put waits for company
  // What keys may take of this process's memory: of values that are volatile, and of others while they are in memory. Puts
  // of volatile values under new keys are ENOSPC beyond it. 0: a quarter of the machine's.
  std::uint64_t key_memory_bytes = 0;
  bool read_only = false;  // open without writing anything; puts are EROFS
  disk* files = nullptr;   // null: the system's. Outlives the engine.
  // Whether the pool's values must not lie in the memory that other processes map. Asked when a pool is opened, made and
  // configured. Null: none.
  std::function<bool(const pool_info&)> keeps_apart;
  // The terms of a pool that is a cache; its level is volatile_. Asked as keeps_apart; a pool is a cache for ever or never.
  std::function<std::optional<cache_terms>(const pool_info&)> cache_of;
  // Called when what readers see of a key changes, in the order of the key's changes, while a lock of the engine is held: it
  // must be quick and must not call the engine. Thread-safe. Null: none.
  std::function<void(const key_change&)> on_change;
  // Called at named points of the write path (kill tests). Null in production. Must be thread-safe.
  std::function<void(std::string_view point)> on_point;
};

// The memory tier as other processes see it.
struct arena_info {
  int fd = -1;            // the memfd, owned by the engine: dup it to pass it on. Readable and writable.
  int read_only_fd = -1;  // the same memory; other users cannot write through it, or make it writable. The engine's.
  std::uint64_t size_bytes = 0;
  std::uint64_t chunk_bytes = 0;
  std::byte* base = nullptr;  // the engine's own mapping: base + segment::offset_bytes, also of values that lie apart
  bool huge_pages = false;
};

// Called once, from a thread of the engine or from within the call itself. Must not block and must not throw.
template <class T>
using completion = std::function<void(result<T>)>;

class engine {
 public:
  // Opens or makes the store. Blocking: replays the index's log and reads the extent records, not the values.
  // EBUSY: another engine has the directory. EUCLEAN: the message says what contradicts what; nothing was changed.
  static result<std::unique_ptr<engine>> open(engine_options options);
  // As close(); completions not yet called get ESHUTDOWN. Pinned memory and fds of arena() are gone afterwards.
  ~engine();
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;

  // Finishes what is under way, syncs and stops; calls from then on are ESHUTDOWN. Blocking. Idempotent.
  status close();

  const arena_info& arena() const noexcept;
  engine_stats stats() const;
  // Of the data directory: 16 hexadecimal digits, random, made durable with it and kept for ever.
  const std::string& identity() const noexcept;
  // Versions given out from now on are greater by at least `count` than those so far.
  void skip_versions(version_t count) noexcept;
  // Requests of these groups (request_key) are new ones when they come again. Blocking. Precondition: none of them is under
  // way.
  status forget_requests(const std::function<bool(std::uint16_t group)>& selected);
  // What is remembered of requests of these groups, for the remember_requests() of another store: calls `take` with parts of
  // about `part_bytes`, until one of its answers is no success. Blocking.
  using group_test = std::function<bool(std::uint16_t group)>;
  status export_requests(const group_test& selected, std::size_t part_bytes,
                         const std::function<status(std::string part)>& take) const;
  // Stores the part's outcomes for these groups, except for requests done here and for those older than the window. A client
  // that repeats a request gets the stored outcome; a copy (copy_of) with the same number is still applied, and counts as
  // done here from then on. EPROTO: this is no such part. Blocking.
  status remember_requests(std::string_view part, const group_test& selected);
  // What was asked before this has been done, and can be read. Blocking.
  status settle();
  // Why writes are refused, if they are: the first I/O error. Empty while all is well.
  std::string read_only_reason() const;

  // ---- Pools: blocking, durable when they return ----------------------------------------------------------------------
  // EEXIST if the name is taken, EINVAL for an empty or too long name.
  result<pool_info> create_pool(std::string_view name, const pool_options& options);
  result<pool_info> find_pool(std::string_view name) const;  // not blocking
  result<pool_info> pool(pool_id id) const;                  // not blocking
  std::vector<pool_info> list_pools() const;                 // not blocking, by name
  result<pool_info> configure_pool(pool_id id, const pool_options& options);
  // The pool and its values. EBUSY while grants of it are open; pinned values live on until they are unpinned.
  status delete_pool(pool_id id);
  // Everything acknowledged for this pool so far at level `logged` or `durable` is durable when this returns.
  status sync(pool_id id);
  void sync_async(pool_id id, completion<durability> done);

  // ---- Owners: who wrote a value, and what each may hold (owners.hpp, docs/design/0014). Not blocking; thread-safe ------
  // The number of that name, for put_options and the like; a new one if it has none. The store remembers the name with the
  // first value of it. 0 (nobody) for an empty name.
  owner_id need_owner(std::string_view name);
  // Empty: nobody, or no such owner.
  std::string owner_name(owner_id id) const;
  // In place of those so far, of owners that are there and that come. Puts beyond are EDQUOT, which names owner, quota and
  // what it holds; copies of other stores (copy_of) are taken anyway. What is there already stays.
  void set_quotas(const std::vector<owner_quota>& quotas);
  // Whether so many keys and bytes more exceed no quota of the pool and the owner, as things are now: then no put of a run
  // can be refused for one, whatever the order in which they are applied.
  bool fits_quotas(pool_id pool, owner_id owner, std::uint64_t keys, std::uint64_t bytes) const;
  // In place of what was said so far: it counts beside what is here for owner_quota::cluster_bytes and cluster_keys.
  void set_held_elsewhere(const std::vector<owner_held>& held);
  // By name.
  std::vector<owner_info> list_owners() const;

  // ---- Values by copy ---------------------------------------------------------------------------------------------------
  // The value is copied into the arena before put_async returns, so the caller's memory is free then.
  // Waits for the disk unless the level is volatile_.
  result<put_result> put(pool_id pool, std::string_view key, std::span<const std::byte> value,
                         const put_options& options = {});
  void put_async(pool_id pool, std::string_view key, std::span<const std::byte> value, const put_options& options,
                 completion<put_result> done);
  // Copies from options.offset_bytes on into `out`. An offset behind the end is EINVAL. Blocking if the value is on disk.
  // EBADMSG: the bytes are not those that were put; the message names pool, key and place, `out` holds nothing of use.
  result<get_result> get(pool_id pool, std::string_view key, std::span<std::byte> out, const get_options& options = {});
  // May read the index (blocking) if the key is not in memory. ENOENT.
  result<value_info> stat(pool_id pool, std::string_view key);
  // user_flags of the current version; as durable as the pool. The version stays.
  status set_user_flags(pool_id pool, std::string_view key, std::uint32_t flags);
  result<erase_result> erase(pool_id pool, std::string_view key, const erase_options& options = {});
  void erase_async(pool_id pool, std::string_view key, const erase_options& options, completion<erase_result> done);
  // One page of keys in order; each key that was there all the time is seen exactly once over the pages. Blocking.
  result<find_page> find(pool_id pool, const find_options& options);
  // Not atomic unless asked: items are independent, but go to disk as one group.
  result<batch_result> batch(pool_id pool, std::span<const batch_operation> operations, const batch_options& options = {});
  void batch_async(pool_id pool, std::span<const batch_operation> operations, const batch_options& options,
                   completion<batch_result> done);

  // ---- Values in place: grants and pins ------------------------------------------------------------------------------
  // A session owns grants and pins. Close a session that gave memory to another process only after that process has ended
  // (its pidfd is readable): the memory is reused at once.

  session_id open_session();
  // Aborts the session's grants and drops its pins. Unknown ids are ignored.
  void close_session(session_id session);

  // Memory for a value of `length_bytes`. Nothing is visible before commit. EFBIG, ENOSPC, EDQUOT. Blocks until
  // options.deadline where there is no room, and on the disk with from_current.
  result<grant> begin_put(session_id session, pool_id pool, std::string_view key, std::uint64_t length_bytes,
                          const begin_options& options = {});
  // The first `bytes` of the grant are there, and will not change. Where the value will go to disk with this durability, it
  // is written from now on, while the rest comes: a commit has less to wait for. Nothing is promised by it; what does not
  // come goes the usual way. Not blocking. EBADF; EINVAL: more bytes than the grant has.
  status arrived(session_id session, grant_id id, std::uint64_t bytes, durability level = durability::pool_default);
  // Makes the grant's bytes the key's value. The grant is used up whatever the outcome. Writes to its memory afterwards
  // are the writer's fault: reads that verify answer EBADMSG. EBADF: no such grant of this session.
  result<put_result> commit(session_id session, grant_id id, const commit_options& options = {});
  void commit_async(session_id session, grant_id id, const commit_options& options, completion<put_result> done);
  status abort(session_id session, grant_id id);

  // Pins the current version; brings it into memory if it is on disk (blocking, ENOSPC if nothing can make room).
  // options.offset_bytes is not looked at.
  result<pinned_value> lookup(session_id session, pool_id pool, std::string_view key, const get_options& options = {});
  // Not blocking: a value on disk is read by the engine's threads.
  void lookup_async(session_id session, pool_id pool, std::string_view key, const get_options& options,
                    completion<pinned_value> done);
  status unpin(session_id session, pin_id pin);

  // ---- The same for many values by one call (runs.hpp)
  // As begin_put() of each; a value that is refused has its reason. options.from_current is EINVAL. Blocks as begin_put().
  result<granted_run> begin_run(session_id session, pool_id pool, std::span<const run_put> puts,
                                const begin_options& options = {});
  // As commit_async() of each, in the order of the items, which are those of begin_run(): value i has `items[i]`. The run's
  // grants are used up. `done` is called once, when the last value is done.
  void commit_run(session_id session, grant_id first, std::span<const run_commit> items, const run_options& options,
                  run_completion done);
  // Aborts what is left of a run. EBADF: there is none.
  status abort_run(session_id session, grant_id first);
  // Pins those that are in memory. Others are left to lookup_async(), so nothing waits for a disk.
  result<pinned_run> pin_run(session_id session, pool_id pool, std::span<const std::string_view> keys,
                             const get_options& options = {});
  // Drops what is left of a run's pins. EBADF: there is none.
  status unpin_run(session_id session, pin_id first);

  // Whether these lie in memory that other processes never map (engine_options::keeps_apart).
  bool is_apart(std::span<const segment> pieces) const noexcept;
  // Whether the session has grants or pins.
  bool holds_memory(session_id session) const;

  // ---- Values longer than memory holds
  // Longer values than this (half of the arena) are only ever on disk. begin_put(), lookup(), put_async() and batches answer
  // EFBIG for them; put() and get() go through writers and readers by themselves.
  std::uint64_t max_in_memory_bytes() const noexcept;
  // Finds space on disk for the value. Blocking (extent files are made). EFBIG, EDQUOT, ENOSPC: the disk, or kMaxStreams
  // are open.
  // `owner`, `request`: as in begin_options.
  result<std::shared_ptr<value_writer>> open_writer(pool_id pool, std::string_view key, std::uint64_t length_bytes,
                                                    owner_id owner = 0, const request_key& request = {});
  // The range of the current version that options.offset_bytes and length_bytes say, which stays whatever is put meanwhile.
  // A part is verified as options.verify says by reading all of the value first; the whole value is as it is read. Blocking.
  // EAGAIN: the value is not large.
  result<std::shared_ptr<value_reader>> open_reader(pool_id pool, std::string_view key, const get_options& options = {});

  // ---- Looking after it
  // ------------------------------------------------------------------------------------------------------
  struct check_report {
    std::uint64_t keys = 0, values_read = 0, bytes_read = 0;
    std::vector<std::string> problems;  // one sentence each, at most 1000
  };
  // Holds index, extents and space against each other; with `values` also reads every value and checks its checksum.
  // Blocking, long; writes go on meanwhile.
  result<check_report> check(bool values);

  class impl;  // engine_impl.hpp

 private:
  explicit engine(std::unique_ptr<impl> made);
  std::unique_ptr<impl> impl_;
};

}  // namespace pl::store
