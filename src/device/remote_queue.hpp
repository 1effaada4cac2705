// SPDX-License-Identifier: Apache-2.0
// The transfers to other processes of one ring, which are under way in the order of their segments.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "device/remote_target.hpp"

namespace pl::device {

class remote_queue {
 public:
  // So many are under way at most; a segment behind them waits.
  static constexpr std::size_t kMaxInFlight = 16;

  bool is_empty() const noexcept { return in_flight_.empty(); }
  bool has_room() const noexcept { return in_flight_.size() < kMaxInFlight; }
  void add(std::unique_ptr<remote_transfer> begun) { in_flight_.push_back({std::move(begun), std::nullopt}); }
  // What was added last ends the segment of this ticket.
  void count_behind_last(std::uint32_t ticket) noexcept { in_flight_.back().ticket = ticket; }
  // The ticket up to which everything has ended since the last call; none: nothing has. The error of the first that failed.
  result<std::optional<std::uint32_t>> poll();
  // Gives up what is under way.
  void drop() noexcept { in_flight_.clear(); }

 private:
  struct entry {
    std::unique_ptr<remote_transfer> transfer;
    std::optional<std::uint32_t> ticket;
  };
  std::deque<entry> in_flight_;
};

}  // namespace pl::device
