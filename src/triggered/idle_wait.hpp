// SPDX-License-Identifier: Apache-2.0
// When the proxy thread sleeps in economy mode, and the protocol that prevents lost wake-ups.
//
// There are two kinds of sleep. A nap ends by itself within kMaxNap, so it needs no protocol. The thread naps while it
// expects something that wakes nobody: a message for a waiting stream, or a doorbell without a recorded event. A deep sleep
// lasts until wake() or kDeepSleep. The thread enters it only if every queued operation has rung its doorbell, or has an
// event.
//
// Lost wake-ups: the proxy thread sets `asleep` and checks again. A thread that queues work publishes it and then reads
// `asleep`. All of this is in one total order (seq_cst), so either the proxy thread sees the work, or the other thread sees
// that it sleeps.
#pragma once

#include <chrono>
#include <cstdint>

namespace pl::triggered {

// Steps of the proxy thread. next() returns the step that follows. test/triggered/idle_wait_test.cpp tests every
// interleaving with queue_step.
enum class sleep_step : std::uint8_t { check, mark_asleep, check_again, block, withdraw, leave };

// `has_work`: the result of a check; ignored for other steps.
constexpr sleep_step next(sleep_step done, bool has_work) noexcept {
  switch (done) {
    case sleep_step::check:
      return has_work ? sleep_step::leave : sleep_step::mark_asleep;
    case sleep_step::mark_asleep:
      return sleep_step::check_again;
    case sleep_step::check_again:
      return has_work ? sleep_step::withdraw : sleep_step::block;
    case sleep_step::block:
      return sleep_step::withdraw;
    default:
      return sleep_step::leave;
  }
}

// Steps of a thread that queues work. publish: increase the count of queued work. ring: give the driver the stream
// operations, which include the doorbell. ask: is the proxy thread asleep? arm: record an event after them; its helper
// thread then wakes the proxy thread.
enum class queue_step : std::uint8_t { publish, ring, ask, arm, leave };

constexpr queue_step next(queue_step done, bool is_asleep) noexcept {
  switch (done) {
    case queue_step::publish:
      return queue_step::ring;
    case queue_step::ring:
      return queue_step::ask;
    case queue_step::ask:
      return is_asleep ? queue_step::arm : queue_step::leave;
    default:
      return queue_step::leave;
  }
}

// Decides how long to stay awake and how long to nap. It learns the usual interval between events of the channel and how
// late naps end on this machine. Not thread-safe.
//
// After the usual interval has passed, a nap is at most 1/kShare of the time since the last event. Both ends of a round trip
// nap, so a round trip takes at most a tenth longer. The thread spins instead of a nap that would be shorter than its
// lateness. (Fixed naps of 200 us made round trips of 57 us take 386 us on an H200, and the planner then learnt that
// interval.)
class sleep_planner {
 public:
  static constexpr std::uint64_t kSpinNs = 20'000;
  static constexpr std::uint64_t kMinSleepNs = 5'000;    // a shorter nap is not worth its two system calls
  static constexpr std::uint64_t kMaxSleepNs = 200'000;  // limits the delay of a message
  static constexpr std::uint64_t kShare = 24;
  static constexpr std::uint64_t kStillNs = 500'000;  // ten times the wake-up time of a deep sleep by an event

  void moved(std::uint64_t now_ns) noexcept;
  // Reports that a nap of `asked_ns`, which no wake-up ended, took `took_ns`.
  void slept(std::uint64_t asked_ns, std::uint64_t took_ns) noexcept;
  std::uint64_t last_ns() const noexcept { return last_ns_; }
  std::uint64_t interval_ns() const noexcept { return interval_ns_; }
  std::uint64_t lateness_ns() const noexcept { return lateness_ns_; }
  // How long to nap before the next call; 0: spin.
  std::uint64_t sleep_ns(std::uint64_t now_ns) const noexcept;
  // True: no event for so long that the thread may enter a deep sleep, if it expects nothing.
  bool is_still(std::uint64_t now_ns) const noexcept { return now_ns - last_ns_ >= kStillNs; }

 private:
  std::uint64_t last_ns_ = 0;
  std::uint64_t interval_ns_ = 0;  // between bursts (events within kSpinNs are one burst); 0: unknown
  std::uint64_t lateness_ns_ = 0;  // of recent naps
  bool has_napped_ = false;        // since the last check
};

}  // namespace pl::triggered
