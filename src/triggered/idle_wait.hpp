// SPDX-License-Identifier: Apache-2.0
// When the proxy thread of economy mode sleeps, and how nobody's work is slept through.
//
// Two depths. A nap ends by itself within kMaxNap and needs no protocol; it is what is left while something is expected
// that nothing announces: a message for a stream that waits, a doorbell behind which no event was recorded. A deep sleep
// lasts until wake() or kDeepSleep, and is for when all that was queued has rung, or will ring an event.
//
// Lost wakes: the proxy sets `asleep` and checks again; a thread that queues work publishes it and then reads `asleep`.
// Both in one total order (seq_cst), so either the proxy sees the work or the other thread sees that the proxy sleeps.
#pragma once

#include <chrono>
#include <cstdint>

namespace pl::triggered {

// One after the other; next() says what comes after a step was done. test/triggered/idle_wait_test.cpp goes through every
// order.
enum class sleep_step : std::uint8_t { check, mark_asleep, check_again, block, withdraw, leave };

// `has_work`: the result of a check; for other steps without meaning.
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

// Of a thread that queues work on a stream which then rings. publish: the count of what is queued grows; ring: the stream
// operations are handed to the driver; ask: is the service asleep; arm: an event behind them, whose helper thread wakes it.
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

// Says how long to stay awake and how long to nap, from how far apart recent movements were and how late naps end on this
// machine. One thread.
//
// What a nap may cost: once the usual interval is over, 1/kShare of the time that has passed since the last movement. Both
// ends of a round trip nap, so it takes a tenth longer at most. Naps that would be shorter than they are late are spun
// through. (Fixed steps of 200 us made rounds of 57 us into 386 us on an H200, and were learnt as the interval.)
class nap_planner {
 public:
  static constexpr std::uint64_t kSpinNs = 20'000;
  static constexpr std::uint64_t kMinNapNs = 5'000;    // less is not worth its two system calls
  static constexpr std::uint64_t kMaxNapNs = 200'000;  // the bound on hearing late of a message
  static constexpr std::uint64_t kShare = 24;
  static constexpr std::uint64_t kStillNs = 500'000;  // ten times what an event takes to wake a thread in deep sleep

  void moved(std::uint64_t now_ns) noexcept;
  // A nap of `asked_ns` that nobody ended took so long.
  void napped(std::uint64_t asked_ns, std::uint64_t took_ns) noexcept;
  std::uint64_t last_ns() const noexcept { return last_ns_; }
  std::uint64_t interval_ns() const noexcept { return interval_ns_; }
  std::uint64_t lateness_ns() const noexcept { return lateness_ns_; }
  // 0: spin. Else nap for so long and ask again.
  std::uint64_t nap_ns(std::uint64_t now_ns) const noexcept;
  // Nothing has come for so long that a deep sleep is in order, if nothing is expected.
  bool is_still(std::uint64_t now_ns) const noexcept { return now_ns - last_ns_ >= kStillNs; }

 private:
  std::uint64_t last_ns_ = 0;
  std::uint64_t interval_ns_ = 0;  // 0: nothing known. Of bursts: movements that follow within kSpinNs are one
  std::uint64_t lateness_ns_ = 0;  // of recent naps
  bool has_napped_ = false;        // and not looked around since
};

}  // namespace pl::triggered
