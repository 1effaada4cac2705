// SPDX-License-Identifier: Apache-2.0
// When a GPU counts as lost. A GPU that fell off the bus or was reset by somebody else finishes no operation and
// reports no fault: whoever waits, polls or sleeps for it gets ETIMEDOUT after this time.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.hpp"
#include "dma/channel.hpp"

namespace pl::copy {

namespace detail {
inline std::atomic<std::uint64_t> test_timeout_ns{0};
}

// An operation that takes this much longer than the slowest link would need has failed.
inline std::uint64_t time_limit_ns(std::uint64_t size_bytes) noexcept {
  constexpr std::uint64_t kTimeoutNs = 10'000'000'000, kSlowestBytesPerUs = 100;
  if (const std::uint64_t wanted = detail::test_timeout_ns.load(std::memory_order_relaxed); wanted != 0) return wanted;
  return kTimeoutNs + size_bytes / kSlowestBytesPerUs * 1000;
}

// 0: as in production.
inline void set_timeout_for_tests(std::uint64_t ns) noexcept {
  detail::test_timeout_ns.store(ns, std::memory_order_relaxed);
}

// For periodic checks: whether operations are in progress of which none has ended for too long.
class stall_watch {
 public:
  bool is_stalled(dma::sequence completed, std::uint64_t limit_ns) noexcept {
    const std::uint64_t now_ns = monotonic_ns();
    if (since_ns_ != 0 && completed == completed_) return now_ns - since_ns_ > limit_ns;
    completed_ = completed;
    since_ns_ = now_ns;
    return false;
  }
  void restart() noexcept { since_ns_ = 0; }

 private:
  dma::sequence completed_ = 0;
  std::uint64_t since_ns_ = 0;  // 0: no check yet
};

}  // namespace pl::copy
