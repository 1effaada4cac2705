// SPDX-License-Identifier: Apache-2.0
// Holds the grants and pins of lost connections until their memory may be reused.
//
// A process that had mapped the arena may still have a copy under way into memory that it was granted, also after its
// connection broke. So its session stays open until the process has ended (os/process_end.hpp) or until it has connected
// again and reported that no copy of the old connection is under way. Sessions of remote clients, and sessions that hold
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

  // The connection of `id` is gone. pid 0: nobody else can touch its memory. `memory` is what it counts for as long as the
  // session stays.
  void leave(store::session_id id, long pid, account_share memory);
  // Process `pid` says that it has done with its earlier session. Others' sessions are left alone.
  void take_back(store::session_id id, long pid);
  // Lets go of all; sessions that end later end at once. Before the io_context goes, which the sessions may outlive.
  void clear();

 private:
  struct left_process {
    std::map<store::session_id, account_share> sessions;
    process_end process;
    std::unique_ptr<asio::posix::stream_descriptor> ended;  // null: there is no descriptor for it
  };
  using processes = std::map<long, left_process>;
  // Whether it stays open: it holds memory, and its process lives.
  bool stays(store::session_id id, long pid, account_share& memory);
  // The lock is held. False: there is no such process.
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
  // Taken back before the old connection's end was seen.
  std::map<store::session_id, long> early_;
  std::optional<asio::steady_timer> retry_;  // gone after clear(): the io_context may then go before this object
};

}  // namespace pl::store_server
