// SPDX-License-Identifier: Apache-2.0
// Every order in which the steps of a waiter, of threads that queue work, of the GPU and of the helper thread can be taken.
#include "triggered/idle_wait.hpp"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace pl::triggered {
namespace {

constexpr int kPuts = 2;  // by one thread, one after the other

// The transition functions under test; mutants replace one.
struct rules {
  sleep_step (*sleep)(sleep_step, bool);
  queue_step (*queue)(queue_step, bool);
  bool asks_first = false;       // the mutant asks before it publishes, and goes by that
  bool ignores_unarmed = false;  // the mutant sleeps while a doorbell without an event is on its way
};

// Without time-outs: they would hide lost wake-ups.
struct world {
  sleep_step waiter = sleep_step::check;
  bool is_asleep = false, is_blocked = false, is_woken = false;
  queue_step queuer = queue_step::publish;
  int put = 0;  // of the queuer, under way
  int queued = 0, at_driver = 0, rung = 0, seen = 0;
  int armed = 0;                           // what the waiter knows to have an event
  int event = 0, rings = 0;                // the event behind put n is recorded; has been heard
  bool has_asked = false, answer = false;  // of the mutant that asks first
  auto operator<=>(const world&) const = default;
};

bool has_work(const world& w, const rules& rule) {
  if (w.rung != w.seen) return true;
  if (rule.ignores_unarmed) return false;
  return w.queued != w.rung && w.armed != w.queued;
}

bool step_waiter(world& w, const rules& rule) {
  if (w.is_blocked) {
    if (!w.is_woken) return false;
    w.is_woken = w.is_blocked = false;
    w.waiter = rule.sleep(sleep_step::block, false);
    return true;
  }
  const auto now = w.waiter;
  if (now == sleep_step::leave) {  // awake: takes what has rung, then thinks of sleep again
    if (w.seen == kPuts) return false;
    w.seen = w.rung;
    w.waiter = sleep_step::check;
    return true;
  }
  if (now == sleep_step::block) {
    w.is_blocked = true;
    return true;
  }
  if (now == sleep_step::mark_asleep) w.is_asleep = true;
  if (now == sleep_step::withdraw) w.is_asleep = false;
  w.waiter = rule.sleep(now, has_work(w, rule));
  return true;
}

bool step_queuer(world& w, const rules& rule) {
  if (w.put == kPuts) return false;
  const auto now = w.queuer;
  if (rule.asks_first && now == queue_step::publish && !w.has_asked) {
    w.answer = w.is_asleep;
    return w.has_asked = true;
  }
  if (now == queue_step::publish) w.queued = w.put + 1;
  if (now == queue_step::ring) w.at_driver = w.put + 1;
  if (now == queue_step::arm) w.event = w.armed = w.put + 1;
  w.queuer = rule.queue(now, rule.asks_first ? w.answer : w.is_asleep);
  if (w.queuer == queue_step::leave) {
    ++w.put;
    w.has_asked = w.answer = false;
    w.queuer = queue_step::publish;
  }
  return true;
}

bool step_gpu(world& w, const rules&) {
  if (w.rung == w.at_driver) return false;
  ++w.rung;
  return true;
}

bool step_helper(world& w, const rules&) {
  if (w.rings >= w.event || w.rung < w.event) return false;
  w.rings = w.event;
  w.is_woken = true;
  return true;
}

struct outcome {
  std::size_t states = 0, stuck = 0;
};

outcome explore(const rules& rule) {
  outcome out;
  std::set<world> known;
  std::vector<world> left{world{}};
  while (!left.empty()) {
    const world state = left.back();
    left.pop_back();
    if (!known.insert(state).second) continue;
    bool can_move = false;
    for (auto* const step : {step_waiter, step_queuer, step_gpu, step_helper}) {
      world successor = state;
      if (!step(successor, rule)) continue;
      can_move = true;
      left.push_back(successor);
    }
    if (!can_move && state.seen != kPuts) ++out.stuck;
  }
  out.states = known.size();
  return out;
}

sleep_step real_sleep(sleep_step done, bool has) { return next(done, has); }
queue_step real_queue(queue_step done, bool asleep) { return next(done, asleep); }

TEST(waiter, no_order_of_steps_loses_a_wake) {
  const auto all = explore({real_sleep, real_queue});
  EXPECT_EQ(all.stuck, 0u);
  EXPECT_GT(all.states, 100u);
}

TEST(waiter, without_the_second_check_a_wake_is_lost) {
  const auto mutant = [](sleep_step done, bool has) {
    return done == sleep_step::mark_asleep ? sleep_step::block : next(done, has);
  };
  EXPECT_GT(explore({mutant, real_queue}).stuck, 0u);
}

TEST(waiter, without_the_sleep_check_a_wake_is_lost) {
  const auto mutant = [](queue_step done, bool) {
    return done == queue_step::publish ? queue_step::ring : queue_step::leave;
  };
  EXPECT_GT(explore({real_sleep, mutant}).stuck, 0u);
}

// ask before publish: the waiter may mark itself asleep and check in between.
TEST(waiter, asking_before_publishing_loses_a_wake) {
  const auto all = explore({real_sleep, real_queue, true});
  EXPECT_GT(all.stuck, 0u);
}

// An event for a put that has no doorbell behind it yet would ring too early.
TEST(waiter, counting_what_is_not_armed_as_armed_loses_a_wake) {
  EXPECT_GT(explore({real_sleep, real_queue, false, true}).stuck, 0u);
}

TEST(sleep_planner, sleeps_until_shortly_before_the_next_event) {
  sleep_planner planner;
  std::uint64_t now = 1'000'000;
  planner.moved(now);
  for (int i = 0; i < 50; ++i) planner.moved(now += 100'000);
  EXPECT_EQ(planner.interval_ns(), 100'000u);
  EXPECT_EQ(planner.sleep_ns(now + 10'000), 0u);
  EXPECT_EQ(planner.sleep_ns(now + 30'000), 50'000u);  // to 80 %
  EXPECT_EQ(planner.sleep_ns(now + 90'000), 0u);
  EXPECT_EQ(planner.sleep_ns(now + 130'000), 130'000u / sleep_planner::kShare);
  EXPECT_FALSE(planner.is_still(now + sleep_planner::kStillNs - 1));
  EXPECT_TRUE(planner.is_still(now + sleep_planner::kStillNs));
}

TEST(sleep_planner, a_sleep_is_never_longer_than_the_bound) {
  sleep_planner planner;
  std::uint64_t now = 1'000'000;
  planner.moved(now);
  for (int i = 0; i < 5; ++i) planner.moved(now += 50'000'000);
  for (std::uint64_t elapsed_ns = 20'000; elapsed_ns < 100'000'000; elapsed_ns += 77'777)
    EXPECT_LE(planner.sleep_ns(now + elapsed_ns), sleep_planner::kMaxSleepNs);
}

TEST(sleep_planner, late_wake_ups_shorten_or_skip_sleeps) {
  sleep_planner planner;
  std::uint64_t now = 1'000'000;
  planner.moved(now);
  for (int i = 0; i < 50; ++i) planner.moved(now += 100'000);
  for (int i = 0; i < 50; ++i) planner.slept(50'000, 70'000);
  EXPECT_NEAR(static_cast<double>(planner.lateness_ns()), 20'000, 10);
  EXPECT_NEAR(static_cast<double>(planner.sleep_ns(now + 30'000)), 30'000, 10);
  EXPECT_EQ(planner.sleep_ns(now + 60'000), 0u);
}

TEST(sleep_planner, a_burst_is_one_movement) {
  sleep_planner planner;
  std::uint64_t now = 1'000'000;
  planner.moved(now);
  for (int i = 0; i < 20; ++i) planner.moved(now += 500);
  EXPECT_EQ(planner.interval_ns(), 0u);
}

// Both sides of a ping-pong sleep by the planner: how long a round takes then. `late_ns`: how late naps end.
double round_trip_ns(std::uint64_t hop_ns, std::uint64_t late_ns) {
  constexpr int kRounds = 2000, kMeasured = 500;
  constexpr std::uint64_t kCheckNs = 300;  // one look of a thread that is awake
  sleep_planner planner[2];
  std::uint64_t arrives = 1'000'000, clocks[2] = {arrives, arrives}, begin = 0;
  for (int i = 0; i < 2 * kRounds; ++i) {
    if (i == 2 * (kRounds - kMeasured)) begin = arrives;
    auto& mine = planner[i % 2];
    auto& now = clocks[i % 2];
    while (now < arrives) {
      const auto nap = mine.sleep_ns(now);
      if (nap != 0) mine.slept(nap, nap + late_ns);
      now += nap != 0 ? nap + late_ns : kCheckNs;
    }
    mine.moved(now);
    arrives = now + hop_ns;
  }
  return static_cast<double>(arrives - begin) / kMeasured;
}

// The figure that decides about economy mode: not more than a tenth slower than awake, whatever the round takes.
TEST(sleep_planner, two_sleeping_sides_lose_at_most_a_tenth) {
  for (const std::uint64_t hop : {8'000u, 12'000u, 20'000u, 30'000u, 60'000u, 100'000u, 300'000u, 1'000'000u})
    for (const std::uint64_t late : {1'000u, 10'000u, 60'000u}) {
      const double taken = round_trip_ns(hop, late), awake = 2 * (static_cast<double>(hop) + 300);
      EXPECT_LT(taken, 1.1 * awake) << "hop " << hop << " ns, naps end " << late << " ns late";
    }
}

}  // namespace
}  // namespace pl::triggered
