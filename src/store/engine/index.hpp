// SPDX-License-Identifier: Apache-2.0
// RocksDB as the store uses it: four families of keys, one log, and results instead of its own status type. The log is
// replayed up to its first torn record; recovery.hpp checks beforehand that nothing acknowledged is behind it, and that
// the files are those of the last clean stop.
#pragma once

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "store/engine/commit_mark.hpp"
#include "store/engine/manifest.hpp"
#include "store/engine/types.hpp"

namespace pl::store {

enum class family : std::size_t {
  catalogue = 0,  // format, version ceiling, pools, counts
  values = 1,     // full_key -> value_record
  extents = 2,    // full_key -> its extents, for large values only: what start-up reads
  requests = 3,   // client, slot -> request_outcome
};
constexpr std::size_t kFamilies = 4;

class index {
 public:
  struct options {
    std::string folder;
    std::uint64_t cache_bytes = 0;
    bool read_only = false;
    rocksdb::Env* env = nullptr;
    // How the log is protected. Without a path it is not, for tools that only read a folder.
    std::string mark_path{};
    disk* files = nullptr;                         // holds the mark
    bool has_extents = false;                      // recovery_input
    std::uint64_t disk_bytes = ~std::uint64_t{0};  // of the file system: memory tables and logs are adapted to a small one
  };
  // EUCLEAN: something acknowledged is lost, or the files are damaged; nothing was changed.
  static result<std::unique_ptr<index>> open(const options& settings);
  ~index();
  index(const index&) = delete;
  index& operator=(const index&) = delete;

  // All calls are thread-safe; writes are ordered as they return.
  result<std::optional<std::string>> get(family column_family, std::string_view key) const;
  // `sync`: on the medium when this returns, with everything that was written before. ENOSPC: readers see no change,
  // but the log may contain it until recover() succeeds, which the next write tries first.
  status write(rocksdb::WriteBatch& batch, bool sync);
  // Everything written so far is on the medium when this returns.
  status sync();
  // Whether settle_mark() would raise the mark that survives a loss of power. The committer asks this when it is idle.
  bool is_mark_behind() const;
  status settle_mark();
  // On return the log is empty if `free_bytes` of the disk suffice for tables of its content, and RocksDB's threads
  // write nothing any more. The files are sealed when the index is destroyed afterwards.
  status prepare_stop(std::uint64_t free_bytes);
  // After a write failed for lack of room: makes writing possible again if there is room now, otherwise ENOSPC. Does
  // nothing after a write that succeeded.
  status recover();

  void put(rocksdb::WriteBatch& batch, family column_family, std::string_view key, std::string_view value) const;
  void erase(rocksdb::WriteBatch& batch, family column_family, std::string_view key) const;
  // [first, bound)
  void erase_range(rocksdb::WriteBatch& batch, family column_family, std::string_view first, std::string_view bound) const;

  // Calls `visit` for each key in [first, bound) in order, until it returns false; an empty `bound` means the end. Sees
  // a snapshot. `keep` = false: what is read does not evict other content from the cache.
  status scan(family column_family, std::string_view first, std::string_view bound, bool keep,
              const std::function<bool(std::string_view key, std::string_view value)>& visit) const;

  // Visits keys from the end back to `after`, which is not visited.
  status scan_back(family column_family, std::string_view after,
                   const std::function<bool(std::string_view key, std::string_view value)>& visit) const;

  // Reads all tables and compares their checksums.
  status verify_tables() const;
  std::uint64_t last_sequence() const;
  std::uint64_t first_log() const;  // earlier logs hold only what is already in the tables

 private:
  index() = default;
  static result<std::unique_ptr<index>> open_files(const options& settings, bool is_new, bool is_sealed);
  // Opens the whole part of a torn manifest for reading.
  static result<std::unique_ptr<index>> open_view(const options& settings, const manifest_file& torn,
                                                  const std::string& path);
  void seal();
  // Makes sure that files removed by RocksDB do not reappear.
  status sync_names() const;
  status resume();
  status recover_locked();
  status change_log();
  status flush();        // all families, and waits for it
  status drain() const;  // waits until nothing waits to be flushed
  void note(std::uint64_t written, std::uint64_t synced);
  std::optional<index_view> view_;  // outlives the database
  std::string folder_;
  rocksdb::Env* env_ = nullptr;
  std::string manifest_copy_;
  std::unique_ptr<commit_mark> mark_;
  bool may_seal_ = false;
  std::atomic<bool> mark_failed_{false};
  std::mutex write_mutex_;                                // also of recovery
  std::chrono::steady_clock::time_point next_attempt_{};  // of recovery
  status last_attempt_;
  std::shared_ptr<class log_failures> failures_;
  std::atomic<bool> needs_recovery_{false};  // a write has failed: the log is not to be touched before recover()
  std::unique_ptr<rocksdb::DB> db_;
  std::array<rocksdb::ColumnFamilyHandle*, kFamilies> families_{};
};

// The errno and message for a RocksDB status.
failure index_failure(const rocksdb::Status& reason, std::string_view action);

}  // namespace pl::store
