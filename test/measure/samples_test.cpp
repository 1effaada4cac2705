// SPDX-License-Identifier: Apache-2.0
#include "measure/samples.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

namespace pl {
namespace {

void spin_ns(std::uint64_t duration_ns) {
  const auto begin = monotonic_ns();
  while (monotonic_ns() - begin < duration_ns) {}
}

TEST(time_once, an_empty_operation_is_nearly_free) {
  std::vector<double> all = time_each_ns(10, 501, [] {});
  std::sort(all.begin(), all.end());
  EXPECT_LT(all[250], 15.0);  // the median: single samples may be hit by an interrupt
  EXPECT_GE(all.front(), 0.0);
}

TEST(time_once, a_known_delay_is_seen) {
  std::vector<double> all = time_each_ns(1, 51, [] { spin_ns(20'000); });
  const double floor_ns = *std::min_element(all.begin(), all.end());
  EXPECT_GE(floor_ns, 19'500.0);
  EXPECT_LT(floor_ns, 40'000.0);
}

TEST(interleaved, every_contender_gets_the_same_turns_in_rotating_order) {
  std::string order;
  std::vector<contender> both;
  both.push_back({"a", [&] { order += 'a'; }, 1});
  both.push_back({"b", [&] { order += 'b'; }, 1});
  const auto rounds = run_interleaved(both, {.warm_up_rounds = 1, .rounds = 3, .budget_ns = 0});
  EXPECT_EQ(rounds, 3u);
  EXPECT_EQ(order,
            "aabb"
            "bbaa"
            "aabb"
            "bbaa");  // one uncounted and one counted operation per turn
  EXPECT_EQ(both[0].samples_ns.size(), 3u);
  EXPECT_EQ(both[1].samples_ns.size(), 3u);
}

TEST(interleaved, turn_sets_the_number_of_counted_operations) {
  int calls = 0;
  std::vector<contender> one;
  one.push_back({"a", [&] { ++calls; }, 8});
  run_interleaved(one, {.warm_up_rounds = 0, .rounds = 5, .budget_ns = 0});
  EXPECT_EQ(one[0].samples_ns.size(), 40u);
  EXPECT_EQ(calls, 45);
}

TEST(interleaved, budget_ends_the_run_but_not_before_one_counted_round) {
  std::vector<contender> slow;
  slow.push_back({"slow", [] { spin_ns(3'000'000); }, 1});
  const auto rounds = run_interleaved(slow, {.warm_up_rounds = 1, .rounds = 1000, .budget_ns = 1'000'000});
  EXPECT_EQ(rounds, 1u);
  EXPECT_EQ(slow[0].samples_ns.size(), 1u);
}

TEST(interleaved, a_failing_operation_ends_the_run) {
  std::vector<contender> bad;
  bad.push_back({"bad", [] { throw std::runtime_error("mismatch"); }, 1});
  EXPECT_THROW(run_interleaved(bad, {}), std::runtime_error);
}

}  // namespace
}  // namespace pl
