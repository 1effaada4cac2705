// SPDX-License-Identifier: Apache-2.0
#include "base/clock.hpp"

#include <algorithm>
#include <iterator>

namespace pl {
namespace {

// Three short windows: their median survives a preemption in any single one.
std::uint64_t measure_ticks_per_ms() {
  std::uint64_t rates[3];
  for (auto& rate : rates) {
    constexpr std::uint64_t kWindowNs = 700'000;
    const std::uint64_t ns0 = monotonic_ns();
    const std::uint64_t t0 = ticks();
    std::uint64_t ns1 = ns0;
    while (ns1 - ns0 < kWindowNs) ns1 = monotonic_ns();
    const std::uint64_t t1 = ticks();
    rate = (t1 - t0) * 1'000'000u / (ns1 - ns0);
  }
  std::sort(std::begin(rates), std::end(rates));
  return std::max<std::uint64_t>(rates[1], 1);
}

}  // namespace

std::uint64_t ticks_per_ms() noexcept {
  static const std::uint64_t rate = measure_ticks_per_ms();
  return rate;
}

}  // namespace pl
