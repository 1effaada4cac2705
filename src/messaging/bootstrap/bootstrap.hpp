// SPDX-License-Identifier: Apache-2.0
// Bootstrap of a communicator: rank, size, and an exchange of a few bytes before there are messages. Processes connect over
// TCP or a local socket (star_exchange.hpp), through a folder, from a fork, or by the caller's own calls
// (local_bootstrap.hpp).
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

class rank_0_desk;
class return_desk;

using byte_string = std::vector<std::byte>;

// One object in each process, with the same size and its own rank. All processes make the same calls in the same order; each
// call returns when all have made it. Only messenger::open, its collective calls and barrier use it, from one thread.
class bootstrap {
 public:
  virtual ~bootstrap() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  // All contributions in rank order; their lengths may differ. ECONNRESET: a process ended; ETIMEDOUT: a process did not
  // take part in time.
  virtual result<std::vector<byte_string>> all_gather(std::span<const std::byte> mine) = 0;
  virtual status barrier() {  // an exchange of nothing
    auto all = all_gather({});
    return all ? status() : status(std::move(all).error());
  }

  // ---- Of a meeting that stays open: ranks may leave and come back (docs/design/0013-ranks-that-come-back.md)
  virtual bool stays_open() const noexcept { return false; }
  // Which process of its rank this one is, from 1. Above 1 it has come back: rank 0 answers for all in its exchanges (to
  // rank 0 all others do), and the contribution of a rank that is gone is empty.
  virtual std::uint32_t incarnation() const noexcept { return 1; }
  // Rank 0: who asks to come back. Null: another rank, or nobody can.
  virtual return_desk* returns() noexcept { return nullptr; }
  // Others: rank 0's end, and its return. Null: rank 0, or it cannot come back.
  virtual rank_0_desk* rank_0() noexcept { return nullptr; }
};

struct bootstrap_options {
  // "host:port" of rank 0, or "file:FOLDER" that all can write; empty: PEERLANE_LINK_RENDEZVOUS, else what the launcher
  // says.
  std::string rendezvous;
  int rank = -1;  // -1: PEERLANE_LINK_RANK, else the launcher's
  int size = 0;   // 0: PEERLANE_LINK_SIZE, else the launcher's
  unsigned timeout_s = 60;
  bool is_elastic = false;                              // ranks may leave and come back; the same for all ranks
  std::function<void(const std::string& line)> report;  // receives progress messages; may be empty
};

// Rank, size and rendezvous of this process, from options, PEERLANE_LINK_* and launcher.
struct meeting_plan {
  int rank = 0;
  int size = 1;
  std::string rendezvous;    // "" if `launched_by` decides
  launcher launched_by;      // of the environment, whether it is used or not
  bool is_launched = false;  // rank and size are the launcher's
};

// ENODATA: neither options nor environment name rank and size. EINVAL: their values are incomplete or contradict each other.
result<meeting_plan> plan_meeting(const bootstrap_options& options);

// Collective: returns when all ranks are connected. In a job that is elastic a rank that comes back returns when rank 0 has
// welcomed it. ENOTSUP: elastic, and the ranks meet in a way that ends with opening. Other programs and ranks of other jobs
// are rejected. EINVAL, EEXIST, EPROTO, EADDRINUSE, ETIMEDOUT, ENOSYS with a sentence that names rank, host and remedy.
result<std::unique_ptr<bootstrap>> open_bootstrap(const bootstrap_options& options);

}  // namespace pl::messaging
