// SPDX-License-Identifier: Apache-2.0
#include "store/engine/log_failure.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <thread>

#include "base/shortage.hpp"
#include "os/blocked_signals.hpp"
#include "store/engine/index.hpp"

namespace pl::store {

struct flush_gate::job {
  flush_gate* gate;
  void (*function)(void*);
  void* argument;
  void* tag;
  void (*withdrawn)(void*);
  clock::time_point held_at{};
  bool may_pass = false;
};

flush_gate::flush_gate(rocksdb::Env* target) : EnvWrapper(target) {
  // Files and time go to the target directly.
  file_system_ = target->GetFileSystem();
  system_clock_ = target->GetSystemClock();
}

void flush_gate::Schedule(void (*function)(void*), void* argument, Priority priority, void* tag, void (*withdrawn)(void*)) {
  if (priority != Priority::HIGH) return target()->Schedule(function, argument, priority, tag, withdrawn);
  auto* const one = new job{this, function, argument, tag, withdrawn, {}, false};
  if (!held(one)) pass_on(one);
}

void flush_gate::pass_on(job* one) { target()->Schedule(run, one, Priority::HIGH, one->tag, withdraw); }

bool flush_gate::held(job* one) {
  const std::lock_guard lock(mutex_);
  if (!closed_ || one->may_pass) return false;
  one->held_at = clock::now();
  waiting_.push_back(one);
  return true;
}

void flush_gate::run(void* argument) {
  auto* const one = static_cast<job*>(argument);
  if (one->gate->held(one)) return;
  const job now = *one;
  delete one;
  now.function(now.argument);
}

void flush_gate::withdraw(void* argument) {
  auto* const one = static_cast<job*>(argument);
  if (one->withdrawn != nullptr) one->withdrawn(one->argument);
  delete one;
}

void flush_gate::open() {
  const std::lock_guard lock(mutex_);
  closed_ = false;
  for (job* const one : waiting_) pass_on(one);
  waiting_.clear();
}

void flush_gate::pass_older_than(clock::time_point limit) {
  const std::lock_guard lock(mutex_);
  const auto younger =
      std::partition(waiting_.begin(), waiting_.end(), [limit](const job* one) { return one->held_at > limit; });
  for (auto one = younger; one != waiting_.end(); ++one) {
    (*one)->may_pass = true;
    pass_on(*one);
  }
  waiting_.erase(younger, waiting_.end());
}

// Resume() first waits for the flushes that were ordered before, the held ones among them, and those may begin only while it
// waits. One that is ordered later, because another has failed, has to wait for the next Resume(), since this one returns at
// once.
rocksdb::Status log_failures::resume(rocksdb::DB& database) {
  constexpr auto kPause = std::chrono::milliseconds(20), kWaits = std::chrono::milliseconds(100);
  gate_.reopen();
  std::mutex mutex;
  std::condition_variable ended;
  bool has_ended = false;
  const auto begun = flush_gate::clock::now();
  auto helper = try_start_thread("recovers the store's index from a full disk", [&] {
    std::unique_lock lock(mutex);
    while (!ended.wait_for(lock, kPause, [&] { return has_ended; })) {
      const auto now = flush_gate::clock::now();
      if (now - begun > kWaits) gate_.pass_older_than(now - kWaits);
    }
  });
  if (!helper) return rocksdb::Status::NoSpace(helper.error().message);
  resumes_ = true;
  const rocksdb::Status resumed = database.Resume();
  resumes_ = false;
  {
    const std::lock_guard lock(mutex);
    has_ended = true;
  }
  ended.notify_one();
  helper->join();
  if (!resumed.ok()) {
    gate_.close();
    return resumed;
  }
  stopped_ = false;
  gate_.open();
  return resumed;
}

void log_failures::OnBackgroundError(rocksdb::BackgroundErrorReason reason, rocksdb::Status* error) {
  using severity = rocksdb::Status::Severity;
  if (resumes_) gate_.close();  // whatever it is, this Resume() fails by it
  // kMemTable: another log could not be made, or what a write left behind could not be written to the old one. Memory holds
  // everything that was acknowledged.
  const bool is_change = reason == rocksdb::BackgroundErrorReason::kMemTable && error->IsIOError();
  const bool wants = error->IsIOError() && is_shortage_or_full(index_failure(*error, "").code);
  const bool is_log = is_change || (wants && reason == rocksdb::BackgroundErrorReason::kWriteCallback);
  if (is_log && !stops_at_log_) {
    *error = rocksdb::Status::OK();
    return;
  }
  // The refusal to touch such a log becomes what the log was refused for: what fails after it is given the same name.
  if (is_change && !wants) *error = rocksdb::Status::NoSpace("the log of the index has refused a write");
  if (is_change || (wants && error->severity() == severity::kFatalError))
    *error = rocksdb::Status(*error, severity::kHardError);
  if (error->severity() < severity::kHardError) return;
  gate_.close();  // first: whoever sees it stopped opens it again
  stopped_ = true;
}

void log_failures::OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason, rocksdb::Status error, bool* automatic) {
  error.PermitUncheckedError();
  *automatic = false;
}

status index::resume() {
  const rocksdb::Status resumed = failures_->resume(*db_);
  return resumed.ok() ? status() : status(index_failure(resumed, "resuming after an error"));
}

// Flush() waits for nothing any more once RocksDB has been resumed.
status index::drain() const {
  constexpr auto kTimeout = std::chrono::seconds(30);
  const auto end = std::chrono::steady_clock::now() + kTimeout;
  for (;;) {
    std::uint64_t waiting = 0;
    db_->GetAggregatedIntProperty(rocksdb::DB::Properties::kNumImmutableMemTable, &waiting);
    if (waiting == 0) return {};
    if (failures_->is_stopped()) return failure{ENOSPC, "store: index: its disk took no table"};
    if (std::chrono::steady_clock::now() > end)
      return failure{ENOSPC, "store: index: its tables are still being written; try again later"};
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

status index::flush() {
  rocksdb::FlushOptions flush_options;
  flush_options.allow_write_stall = true;
  for (rocksdb::ColumnFamilyHandle* handle : families_) {
    const rocksdb::Status flushed = db_->Flush(flush_options, handle);
    if (!flushed.ok()) return index_failure(flushed, "flushing");
  }
  return drain();
}

// The failed write is at most in the old log, and a flushed log is not replayed. So the log is changed for a new one, and
// everything in memory flushed.
//
// Flush() does not change a log that has refused a write, Resume() does, where it is needed and memory holds something to
// flush. So something is put into memory and flushed; if that fails, RocksDB stops and can be resumed.
status index::recover() {
  if (!needs_recovery_) return {};
  const std::lock_guard lock(write_mutex_);
  return recover_locked();
}

status index::recover_locked() {
  if (!needs_recovery_) return {};
  // RocksDB takes a second for each attempt that fails.
  constexpr auto kPause = std::chrono::seconds(1);
  if (std::chrono::steady_clock::now() < next_attempt_) return last_attempt_;
  last_attempt_ = change_log();
  if (last_attempt_) needs_recovery_ = false;
  else next_attempt_ = std::chrono::steady_clock::now() + kPause;
  return last_attempt_;
}

status index::change_log() {
  rocksdb::WriteOptions in_memory;
  in_memory.disableWAL = true;
  for (;;) {
    const bool was_stopped = failures_->is_stopped();
    if (was_stopped) {
      if (status resumed = resume(); !resumed) return resumed;
    }
    const rocksdb::Status noted = db_->Delete(in_memory, families_[0], "nothing");  // no key of the catalogue
    if (noted.ok()) break;
    if (was_stopped) return index_failure(noted, "writing to memory after an error");
    failures_->note_stop();  // it said so a moment before it did
  }
  if (status drained = drain(); !drained && !failures_->is_stopped()) return drained;
  failures_->stop_at_log(true);
  const rocksdb::Status flushed = db_->Flush(rocksdb::FlushOptions(), families_[0]);
  status resumed = flushed.ok() ? status() : resume();
  failures_->stop_at_log(false);
  if (!resumed) return resumed;
  return flush();
}

}  // namespace pl::store
