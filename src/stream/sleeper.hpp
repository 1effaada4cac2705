// SPDX-License-Identifier: Apache-2.0
// When the service thread of economy mode sleeps, and how nobody's work is slept through.
//
// Two depths. A nap ends by itself within kMostNap and needs no protocol; it is what is left while something is expected
// that nothing announces: a message for a stream that waits, a doorbell behind which no event was recorded. A deep sleep
// lasts until wake() or kDeepSleep, and is for when all that was queued has rung, or will ring an event.
//
// Lost wakes: the sleeper says `asleep` and then looks again; who queues work publishes it first and then asks for `asleep`.
// Both in one total order (seq_cst), so either the sleeper sees the work or the other sees that it sleeps.
#pragma once

#include <chrono>
#include <cstdint>

namespace pl::stream {

// One after the other; next() says what comes after a step was done. test/stream/sleeper_test.cpp goes through every order.
enum class sleep_step : std::uint8_t { look, announce, look_again, block, withdraw, leave };

// `has_work`: what a look found; for other steps without meaning.
constexpr sleep_step next(sleep_step done, bool has_work) noexcept {
  switch (done) {
    case sleep_step::look:
      return has_work ? sleep_step::leave : sleep_step::announce;
    case sleep_step::announce:
      return sleep_step::look_again;
    case sleep_step::look_again:
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

// Says how long to stay awake and how long to nap, from how far apart recent movements were. One thread.
class nap_planner {
 public:
  static constexpr std::uint64_t kSpinNs = 20'000;
  static constexpr std::uint64_t kMostNapNs = 200'000;  // the bound on hearing late of a message

  void moved(std::uint64_t now_ns) noexcept;
  std::uint64_t last_ns() const noexcept { return last_ns_; }
  std::uint64_t interval_ns() const noexcept { return interval_ns_; }
  // 0: spin. Else nap for so long and ask again.
  std::uint64_t nap_ns(std::uint64_t now_ns) const noexcept;
  // Nothing has come for so long that a deep sleep is in order, if nothing is expected.
  bool is_still(std::uint64_t now_ns) const noexcept { return now_ns - last_ns_ >= kMostNapNs; }

 private:
  std::uint64_t last_ns_ = 0;
  std::uint64_t interval_ns_ = 0;  // 0: nothing known. Of bursts: movements that follow within kSpinNs are one
};

}  // namespace pl::stream
