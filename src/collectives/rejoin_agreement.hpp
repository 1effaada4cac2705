// SPDX-License-Identifier: Apache-2.0
// How the ranks of an elastic job begin anew after a loss: every one of them is there again, in the same processes as all
// others think, and none has an earlier number of a collective or a barrier.
//
//   each rank    proposes its epoch and its last barrier to rank 0, and agrees to every return meanwhile
//   rank 0       waits until all ranks are alive and have proposed, then tells all: the epoch, the barrier, and which
//   process
//                each rank is
//
// Owns: the proposals under way; a call that ran out of time leaves them for the next one. Threads: one at a time.
// Errors: ETIMEDOUT; ECONNRESET a rank was lost again. A rank 0 that is gone is waited for.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "messaging/messenger.hpp"

namespace pl::collectives {

class rejoin_agreement {
 public:
  explicit rejoin_agreement(messaging::messenger& messages)
      : messages_(messages), peers_(static_cast<std::size_t>(messages.size())) {}
  struct verdict {
    std::uint64_t epoch = 0, barrier = 0;
    std::uint64_t losses = 0;  // messenger::losses(), before the look at all ranks
    bool is_whole = false;     // false: a rank has been lost since, so there must be another one
  };
  result<verdict> run(std::uint64_t epoch, std::chrono::milliseconds limit);

 private:
  struct proposal {
    std::uint64_t epoch = 0, barrier = 0;
  };
  // At rank 0: what a rank proposes.
  struct peer_proposal {
    std::uint32_t incarnation = 0;  // whose proposal it is
    bool has_come = false;
    proposal proposed;
    messaging::request received;
  };
  result<bool> ask(std::uint64_t epoch);
  result<bool> host(std::uint64_t epoch, std::chrono::milliseconds limit);
  void look_at(int rank);
  bool is_agreed() const;
  std::string missing() const;

  messaging::messenger& messages_;
  std::vector<peer_proposal> peers_;
  proposal own_;
  std::vector<std::uint64_t> verdict_words_;  // epoch, barrier, and the incarnation of each rank
  messaging::request sent_, answer_;
};

}  // namespace pl::collectives
