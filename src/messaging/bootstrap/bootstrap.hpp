// SPDX-License-Identifier: Apache-2.0
// Bootstrap of a communicator: rank, size, and an exchange of a few bytes before messages are possible. Processes connect
// over TCP or a local socket (star_exchange.hpp), through a folder, by inheritance over fork, or through an exchange that
// the caller supplies (local_bootstrap.hpp).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "messaging/bootstrap/launcher.hpp"

namespace pl::messaging {

class rank_0_search;
class rejoin_requests;

using byte_string = std::vector<std::byte>;

// Each process has one object, with the common size and its own rank. All processes must make the same calls in the same
// order; a call returns when all processes have made it. Not thread-safe: messenger::open, its collective calls and barrier
// use it, from one thread.
class bootstrap {
 public:
  virtual ~bootstrap() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  // Returns the contributions of all ranks in rank order; their lengths may differ. ECONNRESET: a process has ended.
  // ETIMEDOUT: a process did not take part in time.
  virtual result<std::vector<byte_string>> all_gather(std::span<const std::byte> mine) = 0;
  virtual status barrier() {  // an all-gather of empty contributions
    auto all = all_gather({});
    return all ? status() : status(std::move(all).error());
  }

  // ---- Elastic jobs: ranks may leave and come back (docs/design/0013-ranks-that-come-back.md)
  virtual bool stays_open() const noexcept { return false; }
  // Counts the processes that have had this rank, from 1. Above 1: this process has rejoined. In its exchanges rank 0
  // answers for all ranks (if it is rank 0, all others answer), and the contribution of a rank that is gone is empty.
  virtual std::uint32_t incarnation() const noexcept { return 1; }
  // Rank 0: processes that ask to rejoin. Null: another rank, or rejoining is not possible.
  virtual rejoin_requests* returns() noexcept { return nullptr; }
  // Other ranks: the loss and return of rank 0. Null: this is rank 0, or rank 0 cannot come back.
  virtual rank_0_search* rank_0() noexcept { return nullptr; }
};

struct bootstrap_options {
  // "host:port" of rank 0, or "file:FOLDER" with a folder that all ranks can write; empty: PEERLANE_LINK_RENDEZVOUS, else
  // from the launcher.
  std::string rendezvous;
  int rank = -1;  // -1: PEERLANE_LINK_RANK, else from the launcher
  int size = 0;   // 0: PEERLANE_LINK_SIZE, else from the launcher
  unsigned timeout_s = 60;
  bool is_elastic = false;                              // ranks may leave and come back; must be equal on all ranks
  std::function<void(const std::string& line)> report;  // called with progress messages; may be empty
};

// Rank, size and rendezvous of this process, from the options, PEERLANE_LINK_* and the launcher, in this order.
struct bootstrap_plan {
  int rank = 0;
  int size = 1;
  std::string rendezvous;    // empty: derived from `launched_by`
  launcher launched_by;      // what the environment says, whether it is used or not
  bool is_launched = false;  // rank and size come from the launcher
};

// ENODATA: neither the options nor the environment give rank and size. EINVAL: the values are incomplete or contradictory.
result<bootstrap_plan> plan_bootstrap(const bootstrap_options& options);

// Collective: returns when all ranks are connected. A rank that rejoins an elastic job returns when rank 0 has accepted it.
// Other programs and ranks of other jobs are rejected. ENOTSUP: elastic, but this kind of rendezvous does not stay open.
// EINVAL, EEXIST, EPROTO, EADDRINUSE, ETIMEDOUT, ENOSYS: the message names rank, host and remedy.
result<std::unique_ptr<bootstrap>> open_bootstrap(const bootstrap_options& options);

}  // namespace pl::messaging
