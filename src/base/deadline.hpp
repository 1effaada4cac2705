// SPDX-License-Identifier: Apache-2.0
// Limits of waits as points in time.
#pragma once

#include <cstdint>

#include "base/clock.hpp"

namespace pl {

// The time `milliseconds` from now, by monotonic_ns(), limited to the largest signed number. Precondition: not
// negative.
inline std::uint64_t deadline_after_ms(std::int64_t milliseconds) noexcept {
  constexpr auto kLast = static_cast<std::uint64_t>(INT64_MAX);
  const std::uint64_t now = monotonic_ns(), wanted = static_cast<std::uint64_t>(milliseconds);
  return wanted > (kLast - now) / 1'000'000u ? kLast : now + wanted * 1'000'000u;
}

}  // namespace pl
