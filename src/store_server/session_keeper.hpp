// SPDX-License-Identifier: Apache-2.0
// When the grants and pins of a connection that is gone may be used again.
//
// A process that had mapped the arena may still have a copy under way into memory that it was granted, also after its
// connection broke. So its session stays open until the process has ended (its pidfd says so) or until it has connected
// again and said that no copy of the old connection is under way. Sessions of others end with their connection. Thread-safe.
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <map>
#include <mutex>

#include "engine.hpp"
#include "metrics.hpp"

namespace pl::store_server {

class session_keeper {
 public:
  session_keeper(asio::io_context& home, store::engine& engine, metrics& counters)
      : home_(home), engine_(engine), counters_(counters) {}

  // The connection of `id` is gone. pid 0: nobody else can touch its memory.
  void leave(store::session_id id, long pid);
  // Process `pid` says that it has done with its earlier session. Others' sessions are left alone.
  void take_back(store::session_id id, long pid);
  // Lets go of all; sessions that end later end at once. Before the io_context goes, which the sessions may outlive.
  void clear();

 private:
  struct orphan {
    long pid = 0;
    std::unique_ptr<asio::posix::stream_descriptor> process;
  };
  void end(store::session_id id);

  asio::io_context& home_;
  store::engine& engine_;
  metrics& counters_;
  std::mutex lock_;
  bool closing_ = false;
  std::map<store::session_id, orphan> orphans_;
  // Taken back before the old connection's end was seen.
  std::map<store::session_id, long> early_;
};

}  // namespace pl::store_server
