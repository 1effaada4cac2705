// SPDX-License-Identifier: Apache-2.0
// Measures how long a wait has lasted, for limits that mean "nobody came".
//
// A machine may stand still: a virtual machine is moved or saved, or a process is stopped. On many machines
// CLOCK_MONOTONIC continues meanwhile, and a limit by that clock would end every wait of the machine at once, before
// anybody had a chance.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/clock.hpp"

namespace pl {

// For a loop that checks at least every next_poll(limit). The time between two checks counts as at most twice that: 2
// s, or a quarter of a limit below 8 s.
class attended_time {
 public:
  static constexpr std::chrono::milliseconds poll_interval(std::chrono::milliseconds limit) noexcept {
    using std::chrono::milliseconds;
    return std::clamp(limit / 8, milliseconds(1), milliseconds(1000));
  }

  std::uint64_t measure(std::chrono::milliseconds limit) noexcept {
    const auto now = monotonic_ns();
    const auto max_step_ns = static_cast<std::uint64_t>(poll_interval(limit).count()) * 2'000'000;
    passed_ns_ += std::min(now - polled_ns_, max_step_ns);
    polled_ns_ = now;
    return passed_ns_;
  }
  bool has_reached(std::chrono::milliseconds limit) noexcept {
    measure(limit);
    return passed_ms() >= limit;
  }
  // How long a loop may sleep before its next check.
  std::chrono::milliseconds next_poll(std::chrono::milliseconds limit) const noexcept {
    return std::min(poll_interval(limit), limit - std::min(limit, passed_ms()) + std::chrono::milliseconds(1));
  }
  // Time until the last check.
  std::chrono::milliseconds passed_ms() const noexcept { return std::chrono::milliseconds(passed_ns_ / 1'000'000u); }

 private:
  std::uint64_t polled_ns_ = monotonic_ns(), passed_ns_ = 0;
};

}  // namespace pl
