// SPDX-License-Identifier: Apache-2.0
// Keeps the grants and pins of lost connections until their memory may be reused.
//
// A process that had mapped the arena may still be copying into memory that it was granted, even after its connection
// broke. So its session stays open until the process has ended (os/process_end.hpp), or until it has connected again
// and reported that no copy of the old connection is in progress. Sessions of remote clients, and sessions that hold
// nothing, end with their connection. One descriptor watches each process. Thread-safe.
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <map>
#include <mutex>
#include <optional>

#include "os/process_end.hpp"
#include "store/engine/engine.hpp"
#include "store/server/accounts.hpp"
#include "store/server/metrics.hpp"

namespace pl::store_server {

class orphaned_sessions {
 public:
  orphaned_sessions(asio::io_context& home, store::engine& engine, metrics& counters)
      : home_(home), engine_(engine), counters_(counters), retry_(home) {}

  // The connection of session `id` is gone. pid 0: no other process can access its memory. `memory` keeps counting
  // while the session stays.
  void leave(store::session_id id, long pid, account_share memory);
  // Process `pid` reports that it is done with its earlier session. Sessions of other processes are left alone.
  void take_back(store::session_id id, long pid);
  // Releases everything; sessions that end later end at once. Must be called before the io_context is destroyed,
  // because sessions may outlive it.
  void clear();

 private:
  struct left_process {
    std::map<store::session_id, account_share> sessions;
    process_end process;
    std::unique_ptr<asio::posix::stream_descriptor> ended;  // null if no descriptor could be opened for it
  };
  using processes = std::map<long, left_process>;
  // Whether the session stays open: it holds memory, and its process is alive.
  bool stays(store::session_id id, long pid, account_share& memory);
  // Returns false if there is no such process. Precondition: the lock is held.
  bool watch(long pid, left_process& one);
  void await_end(long pid, asio::posix::stream_descriptor& process);
  void retry_later();
  void end(long pid);
  void close_all(std::map<store::session_id, account_share> sessions);

  asio::io_context& home_;
  store::engine& engine_;
  metrics& counters_;
  std::mutex lock_;
  bool closing_ = false, retrying_ = false;
  processes processes_;
  // Sessions taken back before the end of the old connection was noticed.
  std::map<store::session_id, long> early_;
  std::optional<asio::steady_timer> retry_;  // empty after clear(): the io_context may be destroyed before this object
};

}  // namespace pl::store_server
