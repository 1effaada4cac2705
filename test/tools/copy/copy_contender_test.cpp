// SPDX-License-Identifier: Apache-2.0
#include "tools/copy/copy_contender.hpp"

#include <gtest/gtest.h>

namespace pl::tools {
namespace {

TEST(copy_contender, misses_are_repeated_and_counted) {
  call_record record;
  unsigned calls = 0;
  auto one = make_contender("a", record, {.turn = 1, .pause_us = 0}, [&]() -> status {
    if (++calls % 3 != 0) return failure{EAGAIN, "not now"};
    return {};
  });
  EXPECT_GE(one.sample_ns(), 0);
  EXPECT_EQ(record.done, 1u);
  EXPECT_EQ(record.misses, 2u);
  EXPECT_EQ(record.dropped, 0u);
}

TEST(copy_contender, what_never_comes_is_given_up) {
  call_record record;
  std::vector<contender> all;
  all.push_back(make_contender("a", record, {.turn = 2, .pause_us = 0}, []() -> status {
    return failure{EAGAIN, "never"};
  }));
  run_budget(all, 1'000'000, 10, false);
  EXPECT_TRUE(all[0].samples_ns.empty());
  EXPECT_GE(record.dropped, 6u);
  EXPECT_EQ(record.done, 0u);
}

TEST(copy_contender, other_failures_end_the_run) {
  call_record record;
  auto one = make_contender("a", record, {}, []() -> status { return failure{EIO, "the GPU is gone"}; });
  EXPECT_THROW(one.sample_ns(), tool_failure);
}

TEST(copy_contender, a_sample_of_a_batch_is_its_mean_and_every_call_is_recorded) {
  call_record record;
  unsigned calls = 0;
  auto one = make_contender("a", record, {.turn = 1, .calls_per_sample = 16}, [&]() -> status {
    ++calls;
    return {};
  });
  one.sample_ns();
  EXPECT_EQ(calls, 16u);
  EXPECT_EQ(record.done, 16u);
  one.operation();
  EXPECT_EQ(record.done, 17u);
}

TEST(copy_contender, long_copies_have_no_uncounted_call) {
  call_record record;
  auto one = make_contender("a", record, {.has_uncounted_call = false}, []() -> status { return {}; });
  one.operation();
  EXPECT_EQ(record.done, 0u);
}

TEST(run_budget, the_order_is_the_given_one_again_and_everybody_has_samples) {
  std::vector<call_record> records(5);
  std::vector<contender> all;
  for (unsigned i = 0; i < 5; ++i)
    all.push_back(make_contender(std::string(1, static_cast<char>('a' + i)), records[i], {}, []() -> status { return {}; }));
  run_budget(all, 1'000'000'000, 50, true);
  for (unsigned i = 0; i < 5; ++i) {
    EXPECT_EQ(all[i].name, std::string(1, static_cast<char>('a' + i)));
    EXPECT_EQ(all[i].samples_ns.size(), 50u);
  }
}

TEST(run_budget, three_rounds_even_without_time) {
  call_record record;
  std::vector<contender> all;
  all.push_back(make_contender("a", record, {}, []() -> status { return {}; }));
  run_budget(all, 0, 1000, false);
  EXPECT_EQ(all[0].samples_ns.size(), 3u);
}

TEST(run_pairs, each_pair_is_a_turn_of_both_and_lost_ones_are_left_out) {
  call_record one, other;
  int calls = 0;
  const auto quick = [] { return status{}; };
  const auto often_away = [&calls]() -> status {
    ++calls;
    if (calls % 128 < 2 * static_cast<int>(kAttempts)) return failure{EAGAIN, "not now"};
    return {};
  };
  sampling sampling_options;
  sampling_options.pause_us = 0;
  sampling_options.has_uncounted_call = false;
  const auto pairs = run_pairs(make_contender("a", one, sampling_options, quick),
                               make_contender("b", other, sampling_options, often_away), 0);
  EXPECT_GE(pairs.size(), 15u) << "also without any time";
  EXPECT_GT(other.dropped, 0u);
  for (const auto& [a, b] : pairs) EXPECT_TRUE(a >= 0 && b >= 0);
  const auto never = [] { return status(failure{EAGAIN, "never"}); };
  EXPECT_TRUE(
      run_pairs(make_contender("a", one, sampling_options, quick), make_contender("b", other, sampling_options, never), 0)
          .empty());
}

TEST(sampling, short_stores_are_timed_in_batches) {
  EXPECT_EQ(sampling_for(64, true).calls_per_sample, 16u);
  EXPECT_EQ(sampling_for(4096, true).calls_per_sample, 16u);
  EXPECT_EQ(sampling_for(4097, true).calls_per_sample, 1u);
  EXPECT_EQ(sampling_for(64, false).calls_per_sample, 1u);
  EXPECT_TRUE(sampling_for(64u << 20, false).has_uncounted_call);
  EXPECT_FALSE(sampling_for(512u << 20, false).has_uncounted_call);
}

}  // namespace
}  // namespace pl::tools
