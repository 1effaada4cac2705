// SPDX-License-Identifier: Apache-2.0
// What a messenger needs before there are messages: who takes part, and one way to exchange a few bytes.
#pragma once

#include <span>
#include <vector>

#include "status.hpp"

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
  virtual status barrier() = 0;
};

}  // namespace pl::link
