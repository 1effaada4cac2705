// SPDX-License-Identifier: Apache-2.0
// Follows the changes of a pool's keys: those that begin with a prefix, or one key.
//
//   watcher::open ── watch ──▶ the server queues changes from now on
//   next ── watch_next ──▶ sleeps until there are some; begins the watch again where the connection or the server is another
//
// Threads: one calls next() at a time; stop() from any.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "store/client/client.hpp"
#include "store/protocol/watch.hpp"

namespace pl::store_client {

class watcher {
 public:
  struct target {
    std::uint32_t pool = 0;
    std::string prefix;  // or the key; empty: every key of the pool
    bool exact = false;
  };
  // Changes from when this returns on. ENOTSUP: the server is of an earlier release, or one of a cluster; EACCES: the pool
  // may not be read; EMFILE: the principal has as many as it may. `connection` outlives the watcher.
  static result<std::unique_ptr<watcher>> open(client& connection, target watched);
  // Ends it at the server too, if that answers within a second.
  ~watcher();
  watcher(const watcher&) = delete;
  watcher& operator=(const watcher&) = delete;

  // The next changes, in the order of each key's. One of kind `lost`: others came before, and are not known any more; look
  // at the keys anew. Empty: none until `deadline`. ECANCELED: after stop(). ENXIO: the pool was deleted. ECONNRESET: the
  // server cannot be reached for the client's timeout; a later call tries again.
  result<std::vector<store_protocol::watch_event>> next(clock::time_point deadline);
  // Ends next(), now and from now on.
  void stop() noexcept { stopped_ = true; }

 private:
  watcher(client& connection, target watched) : connection_(connection), target_(std::move(watched)) {}
  operation_ptr make_begin() const;
  operation_ptr make_next() const;
  status take_token(const operation& begun);
  // Waits in parts, so that stop() is seen. False: stopped, or the time is over; the operation continues.
  bool wait(const operation_ptr& one, clock::time_point deadline);

  client& connection_;
  const target target_;
  std::uint64_t token_ = 0;  // 0: it must be begun again
  operation_ptr asked_;      // its answer is to come, perhaps to a later call
  std::atomic<bool> stopped_{false};
};

}  // namespace pl::store_client
