// SPDX-License-Identifier: Apache-2.0
// The one thread that changes the index. It takes all waiting units, settles each operation against the state left by
// those before it, writes all of them as one batch of the log with one sync, and only then publishes and answers them.
// So the order of operations is the order of this queue, and thirty-two waiting clients cost one sync.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "store/engine/commit.hpp"
#include "store/engine/extents.hpp"
#include "store/engine/health.hpp"
#include "store/engine/index.hpp"
#include "store/engine/requests.hpp"
#include "store/engine/table.hpp"

namespace pl::store {

class committer {
 public:
  struct parts {  // all outlive the committer
    index& records;
    extents& space;
    table& memory;
    pools& known;
    owners& writers;
    requests& remembered;
    health& state;
    std::function<void(std::string_view)> on_point;
    std::function<result<std::uint64_t>()> free_bytes;  // of the index's file system
    std::uint64_t reserve_bytes = 0;
    std::uint32_t group_wait_us = 0;
    std::function<void(const key_change&)> on_change;  // engine_options::on_change
    // The store's format record, to be written with the first owner's name; empty if it already says that there are
    // owners.
    std::string format_with_owners;
  };
  // `next_version` and the durably recorded `ceiling` that it must stay below.
  committer(parts components, version_t next_version, version_t ceiling);
  ~committer();
  // Finishes what is queued. Must not be called from the committer's own thread.
  void stop();

  // Takes the unit. Calls its done() from the committer's thread, or at once (ESHUTDOWN) after stop().
  void enqueue(unit_ref unit);
  // A version for a volatile put, which bypasses the committer.
  version_t next_version() noexcept { return next_version_.fetch_add(1, std::memory_order_relaxed); }
  // The version of a put: the one that it brings, above which later versions of this store must be, or else the next
  // one.
  version_t version_for(const copy_of& copy) noexcept {
    if (copy.version == 0) return next_version();
    raise_versions(copy.version + 1);
    return copy.version;
  }
  // Reserves versions for this many puts and returns the first. Taking them one by one would wait each time for the
  // cache line of other committing threads. Others take later versions meanwhile, so each is used only if is_usable()
  // and table::shard::is_newest() allow it.
  version_t reserve_versions(version_t count) noexcept { return next_version_.fetch_add(count, std::memory_order_relaxed); }
  bool is_usable(version_t reserved) const noexcept { return reserved >= least_usable_.load(std::memory_order_relaxed); }
  void skip_versions(version_t count) noexcept { raise(least_usable_, reserve_versions(count) + count); }
  void raise_versions(version_t at_least) noexcept { raise(next_version_, at_least); }
  // Syncs everything written so far and frees the space that waited for it. May be called from any thread.
  status sync_log();

  // Versions recorded ahead at a time: at a million puts a second, more than a run lasts.
  static constexpr version_t kVersionsAhead = version_t{1} << 44;
  static constexpr std::string_view kCeilingKey = "v";
  static constexpr std::string_view kFormatKey = "f";

 private:
  struct key_state {
    bool exists = false;
    bool in_index = false;  // otherwise the truth is `current`, if it exists
    version_t version = 0;
    std::uint64_t length_bytes = 0;
    std::vector<segment> on_disk;  // large and in_index
    value_ref current;             // null: not in memory
    owner_id owner = 0;
    owned_value owned() const noexcept { return {exists, owner, length_bytes}; }
  };
  struct pending_key {
    key_state before, now;
    std::optional<failure> unreadable;  // the previous value is unknown, so nothing can be done to it
  };
  struct group {  // of units that share a write
    std::vector<unit_ref> units;
    rocksdb::WriteBatch batch;
    std::unordered_map<std::string, pending_key> keys;
    std::map<pool_ref, pool_counts> counts;                             // of the index, as they will be
    std::map<pool_ref, pool_counts> charged;                            // differences to undo if the write fails
    std::map<std::pair<pool_ref, owner_id>, pool_counts> owner_counts;  // like counts, for each owner
    std::vector<std::pair<pool_ref, owner_changes>> owner_charged;      // like charged
    std::vector<owner_state*> recorded;                                 // owners whose name the batch holds
    std::vector<segment> freed;
    std::vector<value_ref> written;  // large values whose records the batch holds
    std::map<std::pair<std::uint64_t, std::uint64_t>, commit_unit*> requests;
    std::vector<std::pair<request_key, request_outcome>> outcomes;
    std::vector<std::pair<commit_unit*, commit_unit*>> copies;  // a request that came twice in one group
    std::vector<std::pair<value_ref, std::uint32_t>> flags;     // to be set in memory
    std::vector<pool_ref> dropped;
    bool sync = false;
    bool attempted = false;  // the log may hold it
  };
  struct undo;

  static void raise(std::atomic<version_t>& version, version_t at_least) noexcept {
    version_t now = version.load(std::memory_order_relaxed);
    while (now < at_least && !version.compare_exchange_weak(now, at_least, std::memory_order_relaxed)) {}
  }
  void run();
  std::vector<unit_ref> take();
  void commit(group& commit_group);
  void settle(group& commit_group, commit_unit& unit);
  void settle_operations(group& commit_group, commit_unit& unit);
  status settle_one(group& commit_group, commit_unit& unit, operation& op, undo& log);
  status settle_put(group& commit_group, commit_unit& unit, operation& op, pending_key& key);
  status resolve_flags(group& commit_group, operation& op, pending_key& key);
  void put_record(group& commit_group, const value& made, std::string_view full);
  void settle_drop(group& commit_group, commit_unit& unit);
  void settle_outcomes(group& commit_group, commit_unit& unit);
  bool answer_repeated(group& commit_group, commit_unit& unit, std::optional<request_outcome>& earlier_outcome);
  void remove_record(group& commit_group, const pool_ref& pool, std::string_view full, key_state& state);
  void forget_expired(table::shard& shard, entry& key_entry);
  result<pending_key*> need_key(group& commit_group, const std::string& full);
  pool_counts& need_counts(group& commit_group, const pool_ref& pool);
  void count_owned(group& commit_group, const pool_ref& pool, const owner_changes& changes);
  status charge(group& commit_group, const pool_ref& pool, std::int64_t keys, std::int64_t bytes);
  status charge_owners(group& commit_group, const pool_ref& pool, const owner_changes& changes, bool is_checked);
  static void refund_owners(group& commit_group, std::size_t first);
  void record_owners(group& commit_group);
  status write(group& commit_group);
  void check_room();
  void publish_volatile_names(group& commit_group);
  void publish(group& commit_group);
  void publish_key(const std::string& full, pending_key& key);
  void forget_pool(const pool_ref& pool);
  void take_back(group& commit_group, const failure& reason);
  void tell(change kind, std::string_view full, version_t version, std::uint64_t length_bytes = 0) const;
  void reach(std::string_view point) {
    if (components_.on_point) components_.on_point(point);
  }

  parts components_;
  alignas(64) std::atomic<version_t> next_version_;
  alignas(64) std::atomic<version_t> least_usable_{0};  // the least usable reserved version
  alignas(64) version_t ceiling_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<unit_ref> queue_;
  bool stopping_ = false;
  std::chrono::steady_clock::time_point room_checked_{};
  std::uint64_t written_since_check_ = 0;
  bool room_ = true;
  std::thread thread_;
};

// Keys of the catalogue.
std::string pool_key(pool_id id);
std::string counts_key(pool_id id);

}  // namespace pl::store
