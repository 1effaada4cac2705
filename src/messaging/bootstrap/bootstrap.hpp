// SPDX-License-Identifier: Apache-2.0
// What a messenger needs before there are messages: who takes part, and one way to exchange a few bytes. The one place where
// processes meet: over TCP or a local socket (star_exchange.hpp), through a folder, from a fork, or by the caller's own
// calls (local_bootstrap.hpp).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "messaging/bootstrap/launcher.hpp"

namespace pl::link {

using byte_string = std::vector<std::byte>;

// One object in each process, with the same size and a rank of its own. Every process makes the same calls in the same
// order; each call returns once all have made it. Only messenger::open, its collective calls and barrier use it, from one
// thread.
class bootstrap {
 public:
  virtual ~bootstrap() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  // Everyone's contribution (they may differ in length), in rank order. ECONNRESET: a process ended; ETIMEDOUT: one did not
  // come in time.
  virtual result<std::vector<byte_string>> all_gather(std::span<const std::byte> mine) = 0;
  virtual status barrier() {  // an exchange of nothing
    auto all = all_gather({});
    return all ? status() : status(std::move(all).error());
  }
};

struct bootstrap_options {
  // "host:port" of rank 0, or "file:FOLDER" that all can write; empty: PEERLANE_LINK_RENDEZVOUS, else what the launcher
  // says.
  std::string where;
  int rank = -1;  // -1: PEERLANE_LINK_RANK, else the launcher's
  int size = 0;   // 0: PEERLANE_LINK_SIZE, else the launcher's
  unsigned timeout_s = 60;
  std::function<void(const std::string& line)> tell;  // what is waited for; may be empty
};

// Where and as whom this process meets the others: options, PEERLANE_LINK_* and launcher put together.
struct meeting_plan {
  int rank = 0;
  int size = 1;
  std::string where;         // "" if `by` has to do
  launcher by;               // of the environment, whether it is used or not
  bool is_launched = false;  // rank and size are the launcher's
};

// ENODATA: neither options nor environment say who takes part. EINVAL: what they say is not enough or does not fit.
result<meeting_plan> plan_meeting(const bootstrap_options& options);

// Collective: returns when all ranks have come. Strangers and ranks of other jobs are turned away; EINVAL, EEXIST, EPROTO,
// EADDRINUSE, ETIMEDOUT, ENOSYS with a sentence that names rank, host and remedy.
result<std::unique_ptr<bootstrap>> open_bootstrap(const bootstrap_options& options);

}  // namespace pl::link
