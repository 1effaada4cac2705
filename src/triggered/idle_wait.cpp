// SPDX-License-Identifier: Apache-2.0
#include "triggered/idle_wait.hpp"

#include <algorithm>

namespace pl::triggered {

void sleep_planner::moved(std::uint64_t now_ns) noexcept {
  const auto elapsed_ns = now_ns - last_ns_;
  if (last_ns_ != 0 && elapsed_ns > kSpinNs) {
    if (interval_ns_ == 0) interval_ns_ = elapsed_ns;
    // The work that a nap ended with arrived before its end, at an unknown time.
    else if (has_napped_) interval_ns_ = std::min(interval_ns_, elapsed_ns) / 4 * 3;
    else interval_ns_ = (interval_ns_ * 3 + elapsed_ns) / 4;
  }
  has_napped_ = false;
  last_ns_ = now_ns;
}

void sleep_planner::slept(std::uint64_t asked_ns, std::uint64_t took_ns) noexcept {
  const auto late = took_ns > asked_ns ? took_ns - asked_ns : 0;
  lateness_ns_ = late > lateness_ns_ ? (lateness_ns_ + late) / 2 : (lateness_ns_ * 7 + late) / 8;
  has_napped_ = true;
}

// Awake for kSpinNs, asleep until 80 % of the usual interval, awake until 120 % of it, then naps.
std::uint64_t sleep_planner::sleep_ns(std::uint64_t now_ns) const noexcept {
  const auto elapsed_ns = now_ns - last_ns_;
  if (elapsed_ns < kSpinNs) return 0;
  const auto early = interval_ns_ / 5 * 4, late = interval_ns_ / 5 * 6;
  // A wait of milliseconds is not spun through for a fifth of its time on either side.
  if (elapsed_ns >= early && elapsed_ns < late && elapsed_ns < early + kMaxSleepNs) return 0;
  const auto affordable = elapsed_ns < early ? early - elapsed_ns : elapsed_ns / kShare;
  if (affordable < lateness_ns_ + kMinSleepNs) return 0;
  return std::min(affordable - lateness_ns_, kMaxSleepNs);
}

}  // namespace pl::triggered
