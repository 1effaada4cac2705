// SPDX-License-Identifier: Apache-2.0
// For how long a thread that serves events looks for the next one before it sleeps.
//
// To sleep and to be woken costs some 10 us at both ends. So where events keep coming soon after it lay down, the thread
// looks twice as long the next time; where it looked in vain and then slept long, half as long. It looks at most kMaxNs
// longer than events are apart, so an idle process pays nothing and a busy one answers at once.
//
// Threads: one.
#pragma once

#include <algorithm>
#include <cstdint>

namespace pl::messaging {

class spin_time {
 public:
  static constexpr std::uint64_t kLeastNs = 10'000, kMaxNs = 200'000;

  // `may_grow`: CPUs are left for the threads that do the work which this one waits for.
  explicit spin_time(bool may_grow) noexcept : max_ns_(may_grow ? kMaxNs : kLeastNs) {}
  std::uint64_t ns() const noexcept { return now_ns_; }
  // It looked for so long in vain and then slept until an event, `slept_ns` in all.
  void slept(std::uint64_t slept_ns) noexcept {
    now_ns_ = slept_ns < max_ns_ ? std::min(now_ns_ * 2, max_ns_) : std::max(now_ns_ / 2, kLeastNs);
  }

 private:
  std::uint64_t max_ns_;
  std::uint64_t now_ns_ = kLeastNs;
};

}  // namespace pl::messaging
