// SPDX-License-Identifier: Apache-2.0
#include "index.hpp"

#include <rocksdb/cache.h>
#include <rocksdb/env.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>

#include <cerrno>
#include <thread>

namespace pl::store {
namespace {

rocksdb::Slice slice(std::string_view text) { return {text.data(), text.size()}; }
std::string_view view(const rocksdb::Slice& of) { return {of.data(), of.size()}; }

constexpr const char* kNames[kFamilies] = {"default", "values", "extents", "requests"};

rocksdb::DBOptions database_options(const index::options& how) {
  rocksdb::DBOptions options;
  options.create_if_missing = !how.read_only;
  options.create_missing_column_families = !how.read_only;
  if (how.env != nullptr) options.env = how.env;
  // Everything before the first torn record counts: that is what a crash may leave of a log that is synced in order.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  options.track_and_verify_wals_in_manifest = true;  // a whole log that is missing is damage, not a torn tail
  options.paranoid_checks = true;
  options.avoid_flush_during_recovery = true;            // start-up replays, it does not rewrite
  options.max_total_wal_size = std::uint64_t{64} << 20;  // what start-up replays at most
  options.max_background_jobs = 2;
  options.max_open_files = 512;
  options.keep_log_file_num = 4;
  options.max_log_file_size = std::uint64_t{4} << 20;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.info_log_level = rocksdb::InfoLogLevel::WARN_LEVEL;
  options.max_bgerror_resume_count = 0;  // recover() decides when
  return options;
}

rocksdb::ColumnFamilyOptions family_options(const std::shared_ptr<rocksdb::Cache>& cache) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10, false));
  table.cache_index_and_filter_blocks = true;
  table.format_version = 5;
  rocksdb::ColumnFamilyOptions options;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.compression = rocksdb::kNoCompression;  // values of GPUs do not shrink, keys hardly
  options.write_buffer_size = std::size_t{32} << 20;
  options.max_write_buffer_number = 3;
  options.level_compaction_dynamic_level_bytes = true;
  return options;
}

}  // namespace

failure index_failure(const rocksdb::Status& why, std::string_view what) {
  const std::string text = "store: index: " + std::string(what) + ": " + why.ToString();
  if (why.IsNoSpace() || why.subcode() == rocksdb::Status::kNoSpace) return failure{ENOSPC, text};
  if (why.IsCorruption()) return failure{EUCLEAN, text};
  if (why.IsBusy() || why.subcode() == rocksdb::Status::kStaleFile) return failure{EBUSY, text};
  if (why.IsIOError() && why.ToString().find("lock") != std::string::npos) return failure{EBUSY, text};
  if (why.IsMemoryLimit() || why.subcode() == rocksdb::Status::kMemoryLimit) return failure{ENOMEM, text};
  if (why.IsNotSupported()) return failure{ENOTSUP, text};
  if (why.IsInvalidArgument()) return failure{EINVAL, text};
  return failure{EIO, text};
}

result<std::unique_ptr<index>> index::open(const options& how) {
  const auto cache = rocksdb::NewLRUCache(how.cache_bytes);
  std::vector<rocksdb::ColumnFamilyDescriptor> wanted;
  for (const char* name : kNames) wanted.emplace_back(name, family_options(cache));
  std::unique_ptr<index> made(new index);
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  const rocksdb::DBOptions options = database_options(how);
  const rocksdb::Status opened = how.read_only ? rocksdb::DB::OpenForReadOnly(options, how.folder, wanted, &handles, &db)
                                               : rocksdb::DB::Open(options, how.folder, wanted, &handles, &db);
  if (!opened.ok()) return index_failure(opened, "opening " + how.folder);
  made->db_.reset(db);
  std::copy(handles.begin(), handles.end(), made->families_.begin());
  return made;
}

index::~index() {
  if (!db_) return;
  for (rocksdb::ColumnFamilyHandle* handle : families_) db_->DestroyColumnFamilyHandle(handle);
  db_->Close();
}

result<std::optional<std::string>> index::get(family of, std::string_view key) const {
  std::string found;
  const rocksdb::Status got = db_->Get({}, families_[static_cast<std::size_t>(of)], slice(key), &found);
  if (got.IsNotFound()) return std::optional<std::string>{};
  if (!got.ok()) return index_failure(got, "reading");
  return std::optional<std::string>(std::move(found));
}

status index::write(rocksdb::WriteBatch& batch, bool sync) {
  rocksdb::WriteOptions how;
  how.sync = sync;
  const rocksdb::Status done = db_->Write(how, &batch);
  if (!done.ok()) return index_failure(done, "writing");
  return {};
}

status index::sync() {
  const rocksdb::Status done = db_->SyncWAL();
  // A log that was already switched and synced has nothing to sync.
  if (!done.ok()) return index_failure(done, "syncing the log");
  return {};
}

status index::recover() {
  const rocksdb::Status resumed = db_->Resume();
  if (resumed.IsBusy()) return failure{ENOSPC, "store: index: its disk was full; waiting until there is room"};
  if (!resumed.ok()) return index_failure(resumed, "resuming after an error");
  // What failed is in the old log at most, and a flushed log is not replayed.
  for (rocksdb::ColumnFamilyHandle* of : families_) {
    const rocksdb::Status flushed = db_->Flush(rocksdb::FlushOptions(), of);
    if (!flushed.ok()) return index_failure(flushed, "flushing after an error");
  }
  return {};
}

void index::put(rocksdb::WriteBatch& batch, family of, std::string_view key, std::string_view value) const {
  batch.Put(families_[static_cast<std::size_t>(of)], slice(key), slice(value));
}

void index::erase(rocksdb::WriteBatch& batch, family of, std::string_view key) const {
  batch.Delete(families_[static_cast<std::size_t>(of)], slice(key));
}

void index::erase_range(rocksdb::WriteBatch& batch, family of, std::string_view from, std::string_view until) const {
  batch.DeleteRange(families_[static_cast<std::size_t>(of)], slice(from), slice(until));
}

status index::scan(family of, std::string_view from, std::string_view until, bool keep,
                   const std::function<bool(std::string_view, std::string_view)>& look) const {
  rocksdb::ReadOptions how;
  const rocksdb::Slice end = slice(until);
  if (!until.empty()) how.iterate_upper_bound = &end;
  how.fill_cache = keep;
  how.total_order_seek = true;
  const std::unique_ptr<rocksdb::Iterator> at(db_->NewIterator(how, families_[static_cast<std::size_t>(of)]));
  for (at->Seek(slice(from)); at->Valid(); at->Next()) {
    if (!look(view(at->key()), view(at->value()))) break;
  }
  if (!at->status().ok()) return index_failure(at->status(), "scanning");
  return {};
}

}  // namespace pl::store
