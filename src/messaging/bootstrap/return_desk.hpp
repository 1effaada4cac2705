// SPDX-License-Identifier: Apache-2.0
// A meeting that stays open, at rank 0: processes that ask to be a rank again, and the connections of all ranks.
//
// Who asks has shown that it belongs to the job. Once it is admitted, it takes part in exchanges (bootstrap::all_gather)
// with rank 0 alone, which answers for everybody.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "messaging/bootstrap/survivor_claim.hpp"

namespace pl::messaging {

// Exchanges of a rank that comes back, before it is back: hosts, two introductions, and which process each rank is.
inline constexpr std::uint32_t kReturnSteps = 4;

struct return_event {
  enum class kind {
    asks,  // a process asks to be this rank
    part,  // `data` is its contribution to its next exchange
    gone,  // the rank's process has ended, or closed its communicator
  };
  kind type = kind::asks;
  int rank = -1;
  std::vector<std::byte> data{};
};

class return_desk {
 public:
  virtual ~return_desk() = default;
  // The next event; never waits.
  virtual std::optional<return_event> poll() = 0;
  // Readable when poll() has something.
  virtual int descriptor() const noexcept = 0;
  // Who asks is `incarnation` of its rank from now on. ECONNRESET: it is gone.
  virtual status admit(int rank, std::uint32_t incarnation) = 0;
  // Ends the connection of who asks, whose opening fails with `reason`.
  virtual void refuse(int rank, const failure& reason) = 0;
  // The same of who was admitted.
  virtual void dismiss(int rank, const failure& reason) = 0;
  // The contributions of all ranks to the exchange that the rank has begun.
  virtual void answer(int rank, const std::vector<std::vector<std::byte>>& all) = 0;
  // The rank waits with patience.
  virtual void ask_for_patience(int rank) = 0;
  // Within which a rank that comes back is taken back by all.
  virtual unsigned timeout_ms() const noexcept = 0;
  // By rank: the number of its last process that anybody knows. Empty: each is the first one.
  virtual std::vector<std::uint32_t> last_incarnations() const = 0;
};

// The same meeting at the other ranks: the end of rank 0's process, and a new one, which all look for.
struct rank_0_event {
  enum class kind {
    found,  // `number`: the incarnation of rank 0 that asks to come back; `living`: of each rank, as it knows them; 0: gone
    step,   // `data`: what it says in step `number` of its return
    gone,   // its process has ended, or closed its communicator
  };
  kind type = kind::gone;
  std::uint64_t number = 0;
  std::vector<std::uint32_t> living{};
  std::vector<std::byte> data{};
};

class rank_0_desk {
 public:
  virtual ~rank_0_desk() = default;
  // The next event; never waits.
  virtual std::optional<rank_0_event> poll_rank_0() = 0;
  // Readable when poll_rank_0() has something.
  virtual int rank_0_descriptor() const noexcept = 0;
  // Begins to look for a new process, or begins anew with other facts. EAGAIN: it cannot now.
  // The run is filled in.
  virtual status look_for_rank_0(survivor_claim known) = 0;
  virtual void stop_looking_for_rank_0() = 0;
  virtual bool is_looking_for_rank_0() = 0;
  virtual void answer_rank_0(std::uint64_t step, const std::vector<std::byte>& part) = 0;
};

}  // namespace pl::messaging
