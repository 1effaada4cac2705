// SPDX-License-Identifier: Apache-2.0
#include "store/engine/index.hpp"

#include <rocksdb/cache.h>
#include <rocksdb/convenience.h>
#include <rocksdb/env.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <filesystem>
#include <latch>
#include <thread>
#include <vector>

#include "base/log.hpp"
#include "base/text.hpp"
#include "os/blocked_signals.hpp"
#include "store/engine/index_log.hpp"
#include "store/engine/log_failure.hpp"
#include "store/engine/recovery.hpp"

namespace pl::store {
namespace {

rocksdb::Slice slice(std::string_view text) { return {text.data(), text.size()}; }
std::string_view view(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

constexpr std::uint64_t kSpareBytes = std::uint64_t{1} << 20;  // manifest, options, names

constexpr const char* kNames[kFamilies] = {"default", "values", "extents", "requests"};

// A memory table and the logs behind it: 1/64 of a small disk, since each log is allocated slightly longer than a
// table. A start after a kill has to replay what is in the logs.
std::uint64_t table_bytes(std::uint64_t disk_bytes) {
  return std::clamp<std::uint64_t>(disk_bytes / 64, std::uint64_t{1} << 20, std::uint64_t{16} << 20);
}

// Passes RocksDB's warnings to our log. Its own log, a file beside the index, aborts the process if it is written after
// a full disk has refused a write.
class warnings final : public rocksdb::Logger {
 public:
  warnings() : rocksdb::Logger(rocksdb::InfoLogLevel::WARN_LEVEL) {}
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}  // headers: options, at every start
  void Logv(const rocksdb::InfoLogLevel level, const char* pattern, va_list values) override {
    if (level < rocksdb::InfoLogLevel::WARN_LEVEL || level == rocksdb::InfoLogLevel::HEADER_LEVEL) return;
    char line[512];
    std::vsnprintf(line, sizeof line, pattern, values);
    PL_LOG(warn, "store: index: %s", line);
  }
};

rocksdb::DBOptions database_options(const index::options& settings, bool is_new, bool is_sealed) {
  rocksdb::DBOptions options;
  // A missing index is damage; without this option RocksDB would make an empty one.
  options.create_if_missing = is_new;
  options.create_missing_column_families = !settings.read_only;
  // Replay keeps everything before the first torn record, because a crash may tear the end of a log that is synced in
  // order. After a clean stop nothing is torn.
  options.wal_recovery_mode =
      is_sealed ? rocksdb::WALRecoveryMode::kAbsoluteConsistency : rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  options.track_and_verify_wals_in_manifest = true;  // a completely missing log is damage, not a torn tail
  options.paranoid_checks = true;
  options.avoid_flush_during_recovery = true;                         // start-up replays without rewriting
  options.max_total_wal_size = 2 * table_bytes(settings.disk_bytes);  // limit of what start-up replays
  options.manifest_preallocation_size = std::size_t{64} << 10;
  options.max_background_jobs = 2;
  options.max_open_files = 512;
  // RocksDB opens its files with this many threads, and ends the process if one cannot be started. There are few files.
  options.max_file_opening_threads = 1;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.info_log = std::make_shared<warnings>();
  options.max_bgerror_resume_count = 0;        // recover() decides when to resume
  options.avoid_flush_during_shutdown = true;  // prepare_stop() decides
  return options;
}

rocksdb::ColumnFamilyOptions family_options(const std::shared_ptr<rocksdb::Cache>& cache, std::uint64_t memory_bytes) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = cache;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10, false));
  table.cache_index_and_filter_blocks = true;
  table.format_version = 5;
  rocksdb::ColumnFamilyOptions options;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.compression = rocksdb::kNoCompression;  // GPU values do not compress, and keys hardly do
  options.write_buffer_size = memory_bytes;
  options.max_write_buffer_number = 6;  // as much as before in total: a burst does not wait for the disk
  options.level_compaction_dynamic_level_bytes = true;
  // Each change reads its key first, which is absent in most cases; the filter avoids searching the tables in memory.
  options.memtable_prefix_bloom_size_ratio = 0.05;
  options.memtable_whole_key_filtering = true;
  return options;
}

std::string data_folder(const index::options& settings) {
  return std::filesystem::path(settings.mark_path).parent_path().string();
}

status cut_torn(const index::options& settings, const manifest_file& torn) {
  const auto aside = cut_manifest(settings.folder, torn);
  if (!aside) return aside.error();
  PL_LOG(warn,
         "store: power was lost while %s/%s was written: its record at byte %zu of %zu is torn, and the index is as it was "
         "before that record; nothing that was acknowledged is missing; the torn file is kept as %s",
         settings.folder.c_str(), torn.name.c_str(), torn.broken_at, torn.bytes.size(), aside->c_str());
  return {};
}

// RocksDB starts threads while it opens (one for each of 16 tables, its background jobs, its timer). If one cannot be
// started, it keeps its lock or ends the process, so this checks first that as many can be started.
status find_room_for_threads() {
  constexpr std::size_t kThreads = 20;
  std::latch counted(1);
  std::vector<std::thread> held;
  status outcome;
  while (outcome && held.size() < kThreads) {
    auto one = try_start_thread("serves the store's index", [&counted] { counted.wait(); });
    if (one) held.push_back(*std::move(one));
    else outcome = one.error();
  }
  counted.count_down();
  for (auto& one : held) one.join();
  return outcome;
}

}  // namespace

failure index_failure(const rocksdb::Status& reason, std::string_view action) {
  const std::string text = "store: index: " + std::string(action) + ": " + reason.ToString();
  if (reason.IsNoSpace() || reason.subcode() == rocksdb::Status::kNoSpace) return failure{ENOSPC, text};
  if (reason.IsCorruption()) return failure{EUCLEAN, text};
  if (reason.IsBusy() || reason.subcode() == rocksdb::Status::kStaleFile) return failure{EBUSY, text};
  if (reason.IsIOError() && reason.ToString().find("lock") != std::string::npos) return failure{EBUSY, text};
  if (reason.IsIOError() && text.find("Too many open files") != std::string::npos)
    return failure{EMFILE, text + ": raise the limit, ulimit -n"};
  if (reason.IsMemoryLimit() || reason.subcode() == rocksdb::Status::kMemoryLimit) return failure{ENOMEM, text};
  if (reason.IsNotSupported()) return failure{ENOTSUP, text};
  if (reason.IsInvalidArgument()) return failure{EINVAL, text};
  return failure{EIO, text};
}

result<std::unique_ptr<index>> index::open_files(const options& settings, bool is_new, bool is_sealed) {
  if (auto room = find_room_for_threads(); !room) return room.error();
  const auto cache = rocksdb::NewLRUCache(settings.cache_bytes);
  std::vector<rocksdb::ColumnFamilyDescriptor> wanted;
  for (const char* name : kNames) wanted.emplace_back(name, family_options(cache, table_bytes(settings.disk_bytes)));
  std::unique_ptr<index> made(new index);
  made->folder_ = settings.folder;
  made->env_ = settings.env != nullptr ? settings.env : rocksdb::Env::Default();
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  made->failures_ = std::make_shared<log_failures>(made->env_);
  rocksdb::DBOptions options = database_options(settings, is_new, is_sealed);
  options.env = made->failures_->environment();
  options.listeners.push_back(made->failures_);
  const rocksdb::Status opened = settings.read_only
                                     ? rocksdb::DB::OpenForReadOnly(options, settings.folder, wanted, &handles, &db)
                                     : rocksdb::DB::Open(options, settings.folder, wanted, &handles, &db);
  if (!opened.ok()) {
    failure reason = index_failure(opened, "opening " + settings.folder);
    if (opened.IsCorruption() || opened.IsPathNotFound()) reason = failure{EUCLEAN, reason.message + kDamageAdvice};
    return reason;
  }
  made->db_.reset(db);
  std::copy(handles.begin(), handles.end(), made->families_.begin());
  return made;
}

result<std::unique_ptr<index>> index::open_view(const options& settings, const manifest_file& torn,
                                                const std::string& path) {
  auto view = index_view::make(settings.folder, path, torn.name, torn.whole_part());
  if (!view) return view.error();
  options reading = settings;
  reading.folder = view->path();
  auto made = open_files(reading, false, false);
  if (!made) {
    // Names the folder that the user knows.
    return failure{made.code(), format("store: %s/%s is torn at byte %zu, and without its end: ", settings.folder.c_str(),
                                       torn.name.c_str(), torn.broken_at) +
                                    made.error().message};
  }
  (*made)->view_.emplace(std::move(*view));
  return made;
}

result<std::unique_ptr<index>> index::open(const options& settings) {
  if (status regular = need_regular_files(settings.folder); !regular) return std::move(regular).error();
  if (settings.mark_path.empty()) return open_files(settings, !settings.read_only, false);
  recovery_input question{settings.folder,           settings.has_extents, commit_mark::read(settings.mark_path),
                          settings.files->boot_id(), kFamilies - 1,        {}};
  question.replay = [&settings](const manifest_file* torn) -> result<replay_reach> {
    options reading = settings;
    reading.read_only = true;
    auto opened = torn != nullptr ? open_view(reading, *torn, settings.read_only ? "" : data_folder(settings) + "/recovery")
                                  : open_files(reading, false, false);
    if (!opened) return opened.error();
    return replay_reach{(*opened)->last_sequence(), (*opened)->first_log()};
  };
  const auto plan = plan_recovery(question);
  if (!plan) return plan.error();
  if (plan->is_new && settings.read_only) return failure{ENOENT, "store: " + settings.folder + " holds no index"};
  mark_state first;
  if (question.mark) first.generation = question.mark->generation, first.synced = plan->required;
  first.written = first.synced;
  first.boot = question.boot;
  std::unique_ptr<commit_mark> mark;
  // Marks the files as changed since the clean stop, before anything changes.
  if (!settings.read_only && !plan->is_new) {
    auto opened = commit_mark::open(settings.mark_path, *settings.files, first);
    if (!opened) return opened.error();
    mark = std::move(*opened);
  }
  if (plan->torn && !settings.read_only) {
    if (status cut = cut_torn(settings, *plan->torn); !cut) return std::move(cut).error();
  }
  auto made = plan->torn && settings.read_only ? open_view(settings, *plan->torn, "")
                                               : open_files(settings, plan->is_new, plan->is_sealed);
  if (!made) return made;
  if ((*made)->last_sequence() < plan->required)
    return failure{EUCLEAN, format("store: %s: the index ends at change %llu, and %llu were acknowledged",
                                   settings.folder.c_str(), static_cast<unsigned long long>((*made)->last_sequence()),
                                   static_cast<unsigned long long>(plan->required)) +
                                kDamageAdvice};
  if (!settings.read_only && plan->is_new) {
    auto opened = commit_mark::open(settings.mark_path, *settings.files, first);
    if (!opened) return opened.error();
    mark = std::move(*opened);
  }
  (*made)->mark_ = std::move(mark);
  (*made)->manifest_copy_ = data_folder(settings) + "/manifest.copy";
  return made;
}

index::~index() {
  if (!db_) return;
  failures_->end();
  for (rocksdb::ColumnFamilyHandle* handle : families_) db_->DestroyColumnFamilyHandle(handle);
  db_->Close();
  db_.reset();
  if (may_seal_ && mark_) seal();
}

status index::prepare_stop(std::uint64_t free_bytes) {
  std::uint64_t in_memory = 0;
  db_->GetAggregatedIntProperty(rocksdb::DB::Properties::kCurSizeAllMemTables, &in_memory);
  // A table is not begun if it does not fit.
  const bool has_room = free_bytes / 2 > in_memory + kSpareBytes;
  const status flushed = has_room ? flush() : status();
  failures_->end();
  rocksdb::CancelAllBackgroundWork(db_.get(), true);
  // A full disk has no room for a table. The log is synced all the same; its end may be torn, so the next start treats
  // it as after a crash.
  if (!flushed && flushed.code() != ENOSPC) return flushed;
  may_seal_ = mark_ != nullptr && has_room && flushed;
  return {};
}

// RocksDB removes logs without syncing the folder, and a sync of a file does not include the folder.
status index::sync_names() const {
  std::unique_ptr<rocksdb::Directory> names;
  rocksdb::Status done = env_->NewDirectory(folder_, &names);
  if (done.ok()) done = names->Fsync();
  return done.ok() ? status() : status(index_failure(done, "syncing the names in " + folder_));
}

// Without the seal, the next start treats the log as after a crash, which loses nothing. With it, a log that reappears
// after a loss of power would be taken for damage, so its removal is made durable first.
void index::seal() {
  auto sealed = seals_of(folder_);
  if (const status durable = sync_names(); !durable) sealed = durable.error();
  const status done = sealed ? mark_->seal(std::move(*sealed)) : status(sealed.error());
  if (!done) PL_LOG(warn, "store: the clean stop was not noted: %s", done.error().message.c_str());
  // Only needed for repair.
  if (done) (void)write_manifest_copy(folder_, manifest_copy_);
}

// The change is done, so the next one fails instead of this one, as after any failed write or sync. Without room
// (copy-on-write file systems) the mark stays behind, and is still valid.
void index::note(std::uint64_t written, std::uint64_t synced) {
  const status done = mark_->note(written, synced);
  if (done || done.code() == ENOSPC || mark_failed_.exchange(true)) return;
  PL_LOG(error, "store: the commit mark: %s", done.error().message.c_str());
}

bool index::is_mark_behind() const { return mark_ && mark_->is_dirty(); }
status index::settle_mark() { return mark_ ? mark_->sync() : status(); }
std::uint64_t index::last_sequence() const { return db_->GetLatestSequenceNumber(); }
std::uint64_t index::first_log() const {
  std::uint64_t number = 0;
  db_->GetIntProperty(rocksdb::DB::Properties::kMinLogNumberToKeep, &number);
  return number;
}

status index::verify_tables() const {
  const rocksdb::Status same = db_->VerifyChecksum();
  if (!same.ok()) return index_failure(same, "comparing checksums");
  return {};
}

result<std::optional<std::string>> index::get(family column_family, std::string_view key) const {
  std::string found;
  const rocksdb::Status got = db_->Get({}, families_[static_cast<std::size_t>(column_family)], slice(key), &found);
  if (got.IsNotFound()) return std::optional<std::string>{};
  if (!got.ok()) return index_failure(got, "reading");
  return std::optional<std::string>(std::move(found));
}

status index::write(rocksdb::WriteBatch& batch, bool sync) {
  rocksdb::WriteOptions write_options;
  write_options.sync = sync;
  if (!mark_) {
    const rocksdb::Status done = db_->Write(write_options, &batch);
    return done.ok() ? status() : status(index_failure(done, "writing"));
  }
  if (mark_failed_) return failure{EIO, "store: index: the commit mark could not be written"};
  // One at a time: nobody may write to a log that has refused a write.
  const std::lock_guard lock(write_mutex_);
  if (status recovered = recover_locked(); !recovered) return recovered;
  batch.PutLogData(stamp_of(mark_->synced()));
  // Other threads may write too, so the log's end is at least this.
  const std::uint64_t end = last_sequence() + batch.Count();
  const rocksdb::Status done = db_->Write(write_options, &batch);
  if (!done.ok()) {
    needs_recovery_ = true;
    return index_failure(done, "writing");
  }
  note(end, sync ? end : 0);
  return {};
}

status index::sync() {
  const std::lock_guard lock(write_mutex_);
  // Recovery writes memory to tables instead, which is as durable.
  if (needs_recovery_) return recover_locked();
  const std::uint64_t end = last_sequence();
  const rocksdb::Status done = db_->SyncWAL();
  // A log that was already switched and synced has nothing to sync.
  if (!done.ok()) return index_failure(done, "syncing the log");
  if (mark_) note(end, end);
  return {};
}

void index::put(rocksdb::WriteBatch& batch, family column_family, std::string_view key, std::string_view value) const {
  batch.Put(families_[static_cast<std::size_t>(column_family)], slice(key), slice(value));
}

void index::erase(rocksdb::WriteBatch& batch, family column_family, std::string_view key) const {
  batch.Delete(families_[static_cast<std::size_t>(column_family)], slice(key));
}

void index::erase_range(rocksdb::WriteBatch& batch, family column_family, std::string_view first,
                        std::string_view bound) const {
  batch.DeleteRange(families_[static_cast<std::size_t>(column_family)], slice(first), slice(bound));
}

status index::scan(family column_family, std::string_view first, std::string_view bound, bool keep,
                   const std::function<bool(std::string_view, std::string_view)>& visit) const {
  rocksdb::ReadOptions read_options;
  const rocksdb::Slice end = slice(bound);
  if (!bound.empty()) read_options.iterate_upper_bound = &end;
  read_options.fill_cache = keep;
  read_options.total_order_seek = true;
  const std::unique_ptr<rocksdb::Iterator> cursor(
      db_->NewIterator(read_options, families_[static_cast<std::size_t>(column_family)]));
  for (cursor->Seek(slice(first)); cursor->Valid(); cursor->Next()) {
    if (!visit(view(cursor->key()), view(cursor->value()))) break;
  }
  if (!cursor->status().ok()) return index_failure(cursor->status(), "scanning");
  return {};
}

status index::scan_back(family column_family, std::string_view after,
                        const std::function<bool(std::string_view, std::string_view)>& visit) const {
  rocksdb::ReadOptions read_options;
  read_options.fill_cache = false;
  read_options.total_order_seek = true;
  const std::unique_ptr<rocksdb::Iterator> cursor(
      db_->NewIterator(read_options, families_[static_cast<std::size_t>(column_family)]));
  for (cursor->SeekToLast(); cursor->Valid() && view(cursor->key()) > after; cursor->Prev()) {
    if (!visit(view(cursor->key()), view(cursor->value()))) break;
  }
  if (!cursor->status().ok()) return index_failure(cursor->status(), "scanning back");
  return {};
}

}  // namespace pl::store
