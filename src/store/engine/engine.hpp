// SPDX-License-Identifier: Apache-2.0
// The storage engine: pools of keys and versioned values in one data directory, without sockets. docs/store-engine.md
// explains how values lie in memory and on disk, and why a crash at any moment leaves nothing half done.
//
//   put ──copy──▶ arena (memfd) ──O_DIRECT──▶ extent files ──fdatasync──▶ RocksDB record (log: one sync a group) ─▶ visible
//   begin_put ──▶ the writer fills the arena itself (DMA of a GPU, another process) ──▶ commit ──┘
//
// These rules hold for all calls:
//   Threads      Every call may be made from any thread, concurrently, also from completions. Those must not block on the
//                engine: they use the _async calls. No call throws.
//   Visibility   The operations on a key have one order. A put becomes visible once it has reached its durability and
//                before it is acknowledged. No later read of the key goes back behind what a read has returned.
//   Readers      A reader gets a version and keeps it: puts and erases neither wait for readers nor change what they see.
//   Names        Pool ids come from open_pool, create_pool and find_pool. An unknown one is ENXIO.
//   Errors       errno and a sentence; types.hpp lists them. EIO makes the engine read-only (EROFS from then on): nobody
//                can know what a failed fsync left in the page cache, so it is never repeated. ENOSPC does not.
//   Blocking     Calls that can wait for a disk are marked; the others only take short locks.
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

// What engine_options::key_memory_bytes of 0 stands for: a quarter of the memory that this process may use.
std::uint64_t default_key_memory_bytes();

class disk;          // disk.hpp: the files that the engine uses; tests put a recorder or a fault injector there
class value_reader;  // value_stream.hpp
class value_writer;

inline constexpr std::uint64_t kByDisk = ~std::uint64_t{0};  // a size that is derived from the disk's

struct engine_options {
  std::string directory;  // created if absent (mode 0700); one engine at a time (lock file, EBUSY)
  std::uint64_t arena_bytes = std::uint64_t{1} << 30;  // rounded up to chunk_bytes; pages are allocated when touched
  std::uint64_t chunk_bytes = std::uint64_t{1} << 30;  // the unit that clients map and register; >= 4 MiB, power of two
  bool huge_pages = false;                             // hugetlb pages for the arena; normal pages if there are none
  // Size of extent files, preallocated one after the other as values need them. Applies to a new store; an existing one
  // keeps its own size. kByDisk: 1 GiB, or a sixteenth of a disk under 16 GiB, but at least 4 MiB.
  std::uint64_t extent_file_bytes = kByDisk;
  std::uint64_t disk_limit_bytes = 0;  // limit of all extent files; 0: as much as the disk has
  // Left free for the index: puts fail with ENOSPC below it. kByDisk: 256 MiB, or a twentieth of a disk under 5 GiB.
  std::uint64_t disk_reserve_bytes = kByDisk;
  std::uint32_t small_value_bytes = 32 * 1024;                // values up to this size live in the index; <= 1 MiB
  std::uint64_t index_cache_bytes = std::uint64_t{64} << 20;  // RocksDB's block cache
  std::uint32_t group_wait_us = 0;  // how long a lone durable put waits for others to share its sync
  // How much memory of this process keys may take: keys of volatile values, and of others while they are in memory.
  // Beyond it, puts of volatile values under new keys fail with ENOSPC. 0: a quarter of the machine's memory.
  std::uint64_t key_memory_bytes = 0;
  bool read_only = false;  // open without writing anything; puts are EROFS
  disk* files = nullptr;   // null: the system's files. Outlives the engine.
  // Whether the pool's values must stay out of the memory that other processes map. Called when a pool is opened,
  // created or configured. Null: they never must.
  std::function<bool(const pool_info&)> needs_private_arena;
  // The terms of a pool that is a cache (its level is volatile_). Called as needs_private_arena is. Whether a pool is a
  // cache never changes.
  std::function<std::optional<cache_terms>(const pool_info&)> cache_of;
  // Called when the visible state of a key changes, in the order of the key's changes, while the engine holds a lock:
  // it must be quick and must not call the engine. Thread-safe. Null: nobody listens.
  std::function<void(const key_change&)> on_change;
  // Called at named points of the write path, for kill tests. Null in production. Must be thread-safe.
  std::function<void(std::string_view point)> on_point;
};

// The memory tier as other processes see it.
struct arena_info {
  int fd = -1;  // the memfd, readable and writable. The engine owns it: dup it to pass it on.
  // the same memory for other users, who can neither write through it nor make it writable. The engine owns it.
  int read_only_fd = -1;
  std::uint64_t size_bytes = 0;
  std::uint64_t chunk_bytes = 0;
  std::byte* base = nullptr;  // the engine's own mapping: base + segment::offset_bytes, also for values that lie apart
  bool huge_pages = false;
};

// Called once, from a thread of the engine or within the call itself. Must not block and must not throw.
template <class T>
using completion = std::function<void(result<T>)>;

class engine {
 public:
  // Opens or creates the store. Blocking: replays the index's log and reads the extent records, but not the values.
  // EBUSY: another engine has the directory. EUCLEAN: records contradict each other, as the message says; nothing was
  // changed.
  static result<std::unique_ptr<engine>> open(engine_options options);
  // Closes as close() does; completions not yet called get ESHUTDOWN. Pinned memory and the descriptors of arena()
  // become invalid.
  ~engine();
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;

  // Finishes what is in progress, syncs and stops. Later calls fail with ESHUTDOWN. Blocking. Idempotent.
  status close();

  const arena_info& arena() const noexcept;
  engine_stats stats() const;
  // The identity of the data directory: 16 hexadecimal digits, random, made durable when it is created and never
  // changed.
  const std::string& identity() const noexcept;
  // Makes versions given out from now on greater by at least `count` than all earlier ones.
  void skip_versions(version_t count) noexcept;
  // Forgets the requests of these groups (request_key): if they come again, they count as new. Blocking. Precondition:
  // none of them is in progress.
  status forget_requests(const std::function<bool(std::uint16_t group)>& selected);
  // Passes on what is remembered of requests of these groups, for remember_requests() of another store: calls `take`
  // with parts of about `part_bytes` until one call fails. Blocking.
  using group_test = std::function<bool(std::uint16_t group)>;
  status export_requests(const group_test& selected, std::size_t part_bytes,
                         const std::function<status(std::string part)>& take) const;
  // Stores the part's outcomes for these groups, except for requests done here and for those older than the window. A
  // client that repeats such a request gets the stored outcome. A copy (copy_of) with the same number is still applied,
  // and then counts as done here. EPROTO: not a valid part. Blocking.
  status remember_requests(std::string_view part, const group_test& selected);
  // Waits until everything requested before this call is done and readable. Blocking.
  status settle();
  // Why writes are refused: the first I/O error. Empty while all is well.
  std::string read_only_reason() const;

  // ---- Pools: blocking, durable when they return ----------------------------------------------------------------------
  // EEXIST if the name is taken, EINVAL for an empty or too long name.
  result<pool_info> create_pool(std::string_view name, const pool_options& options);
  result<pool_info> find_pool(std::string_view name) const;  // not blocking
  result<pool_info> pool(pool_id id) const;                  // not blocking
  std::vector<pool_info> list_pools() const;                 // not blocking, by name
  result<pool_info> configure_pool(pool_id id, const pool_options& options);
  // Deletes the pool and its values. EBUSY while it has open grants; pinned values live on until they are unpinned.
  status delete_pool(pool_id id);
  // Makes everything durable that was acknowledged so far for this pool at level `logged` or `durable`.
  status sync(pool_id id);
  void sync_async(pool_id id, completion<durability> done);

  // ---- Owners: who wrote a value, and what each may hold (owners.hpp, docs/design/0014). Not blocking; thread-safe ------
  // The number of the owner of that name, for put_options and the like. A name without a number gets a new one, which
  // the store remembers with the first value of that owner. 0 (nobody) for an empty name.
  owner_id need_owner(std::string_view name);
  // Empty for nobody, or if there is no such owner.
  std::string owner_name(owner_id id) const;
  // Replaces all quotas, for existing owners and for those to come. Puts beyond a quota fail with EDQUOT, which names
  // the owner, the quota and the current amount. Copies from other stores (copy_of) are taken anyway, and existing
  // values stay.
  void set_quotas(const std::vector<owner_quota>& quotas);
  // Whether this many more keys and bytes fit all quotas of the pool and the owner right now. If so, no put of such a
  // run can be refused for a quota, in whatever order they are applied.
  bool fits_quotas(pool_id pool, owner_id owner, std::uint64_t keys, std::uint64_t bytes) const;
  // Replaces what other stores hold, which counts together with what is held here against owner_quota::cluster_bytes
  // and cluster_keys.
  void set_held_elsewhere(const std::vector<owner_held>& held);
  // All owners, ordered by name.
  std::vector<owner_info> list_owners() const;

  // ---- Values by copy ---------------------------------------------------------------------------------------------------
  // put_async copies the value into the arena before it returns, so the caller may reuse its memory then. Waits for the
  // disk unless the level is volatile_.
  result<put_result> put(pool_id pool, std::string_view key, std::span<const std::byte> value,
                         const put_options& options = {});
  void put_async(pool_id pool, std::string_view key, std::span<const std::byte> value, const put_options& options,
                 completion<put_result> done);
  // Copies the value from options.offset_bytes on into `out`. EINVAL if the offset is past the end. Blocking if the
  // value is on disk. EBADMSG: the bytes are not those that were put; the message names pool, key and place, and the
  // content of `out` is unspecified.
  result<get_result> get(pool_id pool, std::string_view key, std::span<std::byte> out, const get_options& options = {});
  // ENOENT if there is no such key. Reads the index (blocking) if the key is not in memory.
  result<value_info> stat(pool_id pool, std::string_view key);
  // Sets user_flags of the current version, as durably as the pool says. The version stays the same.
  status set_user_flags(pool_id pool, std::string_view key, std::uint32_t flags);
  result<erase_result> erase(pool_id pool, std::string_view key, const erase_options& options = {});
  void erase_async(pool_id pool, std::string_view key, const erase_options& options, completion<erase_result> done);
  // Returns one page of keys in order. Over all pages, each key that exists the whole time is seen exactly once.
  // Blocking.
  result<find_page> find(pool_id pool, const find_options& options);
  // Applies the operations as one group on disk. They are independent of each other unless options.atomic is set.
  result<batch_result> batch(pool_id pool, std::span<const batch_operation> operations, const batch_options& options = {});
  void batch_async(pool_id pool, std::span<const batch_operation> operations, const batch_options& options,
                   completion<batch_result> done);

  // ---- Values in place: grants and pins ------------------------------------------------------------------------------
  // A session owns grants and pins. If another process was given memory of a session, close the session only after that
  // process has ended (its pidfd is readable), because the memory is reused at once.

  session_id open_session();
  // Aborts the session's grants and drops its pins. Unknown ids are ignored.
  void close_session(session_id session);

  // Grants memory for a value of `length_bytes`. Nothing is visible before commit. EFBIG, ENOSPC, EDQUOT. Blocks until
  // options.deadline if there is no room, and on the disk with from_current.
  result<grant> begin_put(session_id session, pool_id pool, std::string_view key, std::uint64_t length_bytes,
                          const begin_options& options = {});
  // The first `bytes` of the grant have arrived and will not change. If a value of this durability goes to disk,
  // writing starts now while the rest arrives, which leaves less to wait for at commit. This is only a hint: the commit
  // writes whatever was not written early. Not blocking. EBADF; EINVAL if the grant has fewer bytes.
  status arrived(session_id session, grant_id id, std::uint64_t bytes, durability level = durability::pool_default);
  // Makes the grant's bytes the key's value. The grant is used up whatever the outcome. The writer must not write to
  // the memory afterwards: verified reads would answer EBADMSG. EBADF: no such grant of this session.
  result<put_result> commit(session_id session, grant_id id, const commit_options& options = {});
  void commit_async(session_id session, grant_id id, const commit_options& options, completion<put_result> done);
  status abort(session_id session, grant_id id);

  // Pins the current version. Brings it into memory if it is on disk (blocking; ENOSPC if no room can be made). Ignores
  // options.offset_bytes.
  result<pinned_value> lookup(session_id session, pool_id pool, std::string_view key, const get_options& options = {});
  // Like lookup(), but not blocking: the engine's threads read a value that is on disk.
  void lookup_async(session_id session, pool_id pool, std::string_view key, const get_options& options,
                    completion<pinned_value> done);
  status unpin(session_id session, pin_id pin);

  // ---- The same for many values by one call (runs.hpp)
  // Like begin_put() for each value; a refused value carries its reason. options.from_current is EINVAL. Blocks as
  // begin_put() does.
  result<granted_run> begin_run(session_id session, pool_id pool, std::span<const run_put> puts,
                                const begin_options& options = {});
  // Like commit_async() for each value, in the order of begin_run(): value i has `items[i]`. Uses up the run's grants.
  // Calls `done` once, when the last value is done.
  void commit_run(session_id session, grant_id first, std::span<const run_commit> items, const run_options& options,
                  run_completion done);
  // Aborts what is left of a run. EBADF if there is no such run.
  status abort_run(session_id session, grant_id first);
  // Pins the values that are in memory. The others are left to lookup_async(), so this never waits for a disk.
  result<pinned_run> pin_run(session_id session, pool_id pool, std::span<const std::string_view> keys,
                             const get_options& options = {});
  // Drops what is left of a run's pins. EBADF if there is no such run.
  status unpin_run(session_id session, pin_id first);

  // Whether these pieces lie in memory that other processes never map (engine_options::needs_private_arena).
  bool is_in_private_arena(std::span<const segment> pieces) const noexcept;
  // Whether the session has grants or pins.
  bool holds_memory(session_id session) const;

  // ---- Values longer than memory holds
  // Values longer than this (half of the arena) are only ever on disk. begin_put(), lookup(), put_async() and batches
  // answer EFBIG for them; put() and get() use writers and readers internally.
  std::uint64_t max_in_memory_bytes() const noexcept;
  // Finds space on disk for the value. Blocking, because extent files may have to be created. EFBIG; EDQUOT; ENOSPC if
  // the disk is full or kMaxStreams are open. `owner` and `request` are as in begin_options.
  result<std::shared_ptr<value_writer>> open_writer(pool_id pool, std::string_view key, std::uint64_t length_bytes,
                                                    owner_id owner = 0, const request_key& request = {});
  // Reads the range of the current version given by options.offset_bytes and length_bytes; the version stays readable
  // whatever is put meanwhile. A whole value is verified while it is read; for a part, options.verify makes the call
  // read the whole value first. Blocking. EAGAIN: the value is not large.
  result<std::shared_ptr<value_reader>> open_reader(pool_id pool, std::string_view key, const get_options& options = {});

  // ---- Looking after it
  // ------------------------------------------------------------------------------------------------------
  struct check_report {
    std::uint64_t keys = 0, values_read = 0, bytes_read = 0;
    std::vector<std::string> problems;  // one sentence each; at most 1000
  };
  // Compares index, extents and space with each other. With `values`, also reads every value and checks its checksum.
  // Blocking and long; writes continue meanwhile.
  result<check_report> check(bool values);

  class impl;  // engine_impl.hpp

 private:
  explicit engine(std::unique_ptr<impl> made);
  std::unique_ptr<impl> impl_;
};

}  // namespace pl::store
