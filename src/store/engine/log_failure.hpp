// SPDX-License-Identifier: Apache-2.0
// Keeps three faults of RocksDB 7.8 from the store when a disk is full: it stops all work until it is resumed; a flush that
// was about to begin at that moment is forgotten, and Resume() waits for it without end; and it ends the process if it
// appends to a log that has refused a write (db/error_handler.cc, file/writable_file_writer.cc).
#pragma once

#include <rocksdb/env.h>
#include <rocksdb/listener.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <vector>

namespace rocksdb {
class DB;
}

namespace pl::store {

// RocksDB's environment, but flushes that it orders while it is stopped begin when it has been resumed. Without that they
// find it stopped, end, and are never ordered again, and Resume() waits for them.
class flush_gate final : public rocksdb::EnvWrapper {
 public:
  explicit flush_gate(rocksdb::Env* target);
  void Schedule(void (*function)(void*), void* argument, Priority priority, void* tag, void (*withdrawn)(void*)) override;

  using clock = std::chrono::steady_clock;
  void close() noexcept { closed_ = true; }
  void reopen() noexcept { closed_ = false; }  // for what is ordered from now on
  void open();
  void pass_older_than(clock::time_point limit);

 private:
  struct job;
  static void run(void* argument);
  static void withdraw(void* argument);
  bool held(job* one);
  void pass_on(job* one);
  std::mutex mutex_;
  std::atomic<bool> closed_{false};
  std::vector<job*> waiting_;
};

class log_failures final : public rocksdb::EventListener {
 public:
  explicit log_failures(rocksdb::Env* target) : gate_(target) {}
  rocksdb::Env* environment() noexcept { return &gate_; }

  // RocksDB does not hear of a log that refused a write for want of something: the index writes no more to that log.
  void OnBackgroundError(rocksdb::BackgroundErrorReason reason, rocksdb::Status* error) override;
  // The index decides when, instead of a thread that looks for room every five seconds, and refuses Resume() meanwhile.
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason reason, rocksdb::Status error, bool* automatic) override;

  // RocksDB has stopped and waits for Resume().
  bool is_stopped() const noexcept { return stopped_; }
  void note_stop() noexcept { stopped_ = true; }
  rocksdb::Status resume(rocksdb::DB& database);
  // Nothing is held back any more: it is about to be closed.
  void end() { gate_.open(); }
  // From now on it is to stop if it cannot change its log for another one, since Resume() alone takes another one by force.
  void stop_at_log(bool stops) noexcept { stops_at_log_ = stops; }

 private:
  flush_gate gate_;
  std::atomic<bool> stopped_{false}, stops_at_log_{false}, resumes_{false};
};

}  // namespace pl::store
