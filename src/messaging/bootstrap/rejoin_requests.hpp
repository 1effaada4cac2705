// SPDX-License-Identifier: Apache-2.0
// Interfaces for ranks that come back in an elastic job. rejoin_requests is the side of rank 0: processes that ask to
// rejoin, and the connections of all ranks. rank_0_search is the side of the other ranks: the loss of rank 0 and its return.
//
// A process that asks to rejoin is already authenticated. Once admitted, it takes part in exchanges (bootstrap::all_gather)
// with rank 0 alone, which answers for all ranks.
//
// Threads: one. A call waits at most for a small frame to be sent, never for an answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "messaging/bootstrap/survivor_claim.hpp"

namespace pl::messaging {

// Number of exchanges that a rejoining rank makes: hosts, peer_info twice, and the incarnations of all ranks.
inline constexpr std::uint32_t kReturnSteps = 4;

struct return_event {
  enum class kind {
    asks,  // a process asks to take this rank
    part,  // `data` is its contribution to its next exchange
    gone,  // the rank's process has ended, or closed its communicator
  };
  kind type = kind::asks;
  int rank = -1;
  std::vector<std::byte> data{};
};

class rejoin_requests {
 public:
  virtual ~rejoin_requests() = default;
  // The next event; empty: none. Never waits.
  virtual std::optional<return_event> poll() = 0;
  // Readable when poll() has an event.
  virtual int descriptor() const noexcept = 0;
  // Admits the process that asks for `rank`, with this incarnation. ECONNRESET: the process is gone.
  virtual status admit(int rank, std::uint32_t incarnation) = 0;
  // Rejects the process that asks for `rank`: closes its connection, and its opening fails with `reason`.
  virtual void refuse(int rank, const failure& reason) = 0;
  // The same for a process that was already admitted.
  virtual void dismiss(int rank, const failure& reason) = 0;
  // Sends the contributions of all ranks to the exchange that `rank` has begun.
  virtual void answer(int rank, const std::vector<std::vector<std::byte>>& all) = 0;
  // Tells `rank` that its answer will come later, so that it does not time out.
  virtual void extend_time_limit(int rank) = 0;
  // Time limit for all ranks to take back a rejoining rank.
  virtual unsigned timeout_ms() const noexcept = 0;
  // By rank: the highest incarnation that any rank knows. Empty: every rank still has its first process.
  virtual std::vector<std::uint32_t> last_incarnations() const = 0;
};

// At the other ranks: the process of rank 0 has ended, or a new one was found.
struct rank_0_event {
  enum class kind {
    found,  // `number`: incarnation of the rank 0 that asks to rejoin; `living`: incarnations that it knows, by rank; 0:
            // gone
    step,   // `data`: contribution of rank 0 to step `number` of its return
    gone,   // its process has ended, or closed its communicator
  };
  kind type = kind::gone;
  std::uint64_t number = 0;
  std::vector<std::uint32_t> living{};
  std::vector<std::byte> data{};
};

class rank_0_search {
 public:
  virtual ~rank_0_search() = default;
  // The next event; empty: none. Never waits.
  virtual std::optional<rank_0_event> poll_rank_0() = 0;
  // Readable when poll_rank_0() has an event.
  virtual int rank_0_descriptor() const noexcept = 0;
  // Starts the search for a new process of rank 0, or restarts it with a new claim; known.run is filled in. EAGAIN: the
  // search could not be started.
  virtual status find_rank_0(survivor_claim known) = 0;
  virtual void stop_finding_rank_0() = 0;
  virtual bool is_finding_rank_0() = 0;
  virtual void answer_rank_0(std::uint64_t step, const std::vector<std::byte>& part) = 0;
};

}  // namespace pl::messaging
