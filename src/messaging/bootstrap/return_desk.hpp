// SPDX-License-Identifier: Apache-2.0
// Rank 0's side of a meeting that stays open: processes that ask to be a rank again, and the connections of all ranks.
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

namespace pl::messaging {

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
};

}  // namespace pl::messaging
