// SPDX-License-Identifier: Apache-2.0
// How long a wait has lasted, for limits that say "nobody came".
//
// A machine may stand still: a virtual machine is moved or saved, a process is stopped. CLOCK_MONOTONIC runs on meanwhile on
// many of them, and a limit that counted it would end every wait of the machine at once, before anybody had a chance.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/clock.hpp"

namespace pl {

// Of a loop that looks at least once per second. The time between two looks counts as kMaxStepNs at most.
class attended_time {
 public:
  static constexpr std::uint64_t kMaxStepNs = 2'000'000'000;

  // To be called once per second at least.
  std::uint64_t measure() noexcept {
    const auto now = monotonic_ns();
    passed_ns_ += std::min(now - looked_ns_, kMaxStepNs);
    looked_ns_ = now;
    return passed_ns_;
  }
  bool has_reached(std::chrono::milliseconds limit) noexcept {
    measure();
    return passed_ms() >= limit;
  }
  // Until the last look.
  std::chrono::milliseconds passed_ms() const noexcept { return std::chrono::milliseconds(passed_ns_ / 1'000'000u); }

 private:
  std::uint64_t looked_ns_ = monotonic_ns(), passed_ns_ = 0;
};

}  // namespace pl
