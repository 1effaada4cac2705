// SPDX-License-Identifier: Apache-2.0
// Follows the changes of a pool's keys: of one key, or of all keys with a prefix.
//
//   watcher::open ── watch ──▶ the server queues changes from now on
//   next ── watch_next ──▶ sleeps until there are some; begins the watch again on another connection or server
//
// One thread at a time calls next(); stop() may be called from any.
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
  // Reports changes from the moment this returns. ENOTSUP: the server is of an earlier release, or in a cluster.
  // EACCES: the pool may not be read. EMFILE: the principal has as many watches as it may. `connection` must outlive
  // the watcher.
  static result<std::unique_ptr<watcher>> open(client& connection, target watched);
  // Also ends the watch at the server, if the server answers within a second.
  ~watcher();
  watcher(const watcher&) = delete;
  watcher& operator=(const watcher&) = delete;

  // The next changes, in order for each key. An event of kind `lost` means that earlier changes were dropped: read the
  // keys again. Empty if there are none until `deadline`. ECANCELED: after stop(). ENXIO: the pool was deleted.
  // ECONNRESET: the server could not be reached within the client's timeout; a later call tries again.
  result<std::vector<store_protocol::watch_event>> next(clock::time_point deadline);
  // Ends the current and all later calls of next().
  void stop() noexcept { stopped_ = true; }

 private:
  watcher(client& connection, target watched) : connection_(connection), target_(std::move(watched)) {}
  operation_ptr make_begin() const;
  operation_ptr make_next() const;
  status take_token(const operation& begun);
  // Waits in steps, so that stop() is noticed. Returns false if stopped or the time is over; the operation continues.
  bool wait(const operation_ptr& one, clock::time_point deadline);

  client& connection_;
  const target target_;
  std::uint64_t token_ = 0;  // 0: the watch must be begun again
  operation_ptr asked_;      // its answer is still to come, perhaps in a later call
  std::atomic<bool> stopped_{false};
};

}  // namespace pl::store_client
