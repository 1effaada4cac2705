// SPDX-License-Identifier: Apache-2.0
// How long a thread that serves events polls for the next one before it sleeps.
//
// Sleeping and waking costs about 10 us at both ends. So if an event arrives soon after the thread has gone to sleep, it
// polls twice as long the next time. If it has polled in vain and then slept for long, it polls half as long. It polls for
// at most kMaxNs, so an idle process uses almost no CPU time and a busy one answers at once.
//
// Owns: nothing. Threads: one. Errors: none.
#pragma once

#include <algorithm>
#include <cstdint>

namespace pl::messaging {

class spin_time {
 public:
  static constexpr std::uint64_t kLeastNs = 10'000, kMaxNs = 200'000;

  // `may_grow`: enough CPUs are left for the threads whose work this thread waits for. False: the time stays at kLeastNs.
  explicit spin_time(bool may_grow) noexcept : max_ns_(may_grow ? kMaxNs : kLeastNs) {}
  // How long to poll, in nanoseconds.
  std::uint64_t ns() const noexcept { return now_ns_; }
  // Call it when the thread has polled for ns() in vain and then slept until an event. `slept_ns`: the time of both.
  void slept(std::uint64_t slept_ns) noexcept {
    now_ns_ = slept_ns < max_ns_ ? std::min(now_ns_ * 2, max_ns_) : std::max(now_ns_ / 2, kLeastNs);
  }

 private:
  std::uint64_t max_ns_;
  std::uint64_t now_ns_ = kLeastNs;
};

}  // namespace pl::messaging
