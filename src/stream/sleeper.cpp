// SPDX-License-Identifier: Apache-2.0
#include "sleeper.hpp"

#include <algorithm>

namespace pl::stream {

void nap_planner::moved(std::uint64_t now_ns) noexcept {
  const auto since = now_ns - last_ns_;
  if (last_ns_ != 0 && since > kSpinNs) interval_ns_ = interval_ns_ == 0 ? since : (interval_ns_ * 3 + since) / 4;
  last_ns_ = now_ns;
}

// Awake for kSpinNs, asleep until 80 % of the usual interval, awake until 120 % of it, then naps.
std::uint64_t nap_planner::nap_ns(std::uint64_t now_ns) const noexcept {
  const auto since = now_ns - last_ns_;
  if (since < kSpinNs) return 0;
  const auto early = interval_ns_ / 5 * 4, late = interval_ns_ / 5 * 6;
  if (since < early) return std::min(early - since, kMostNapNs);
  // A wait of milliseconds is not spun through for a fifth of its time on either side.
  if (since < late && since < early + kMostNapNs) return 0;
  return kMostNapNs;
}

}  // namespace pl::stream
