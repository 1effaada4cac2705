// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/copy_plan.hpp"

#include <gtest/gtest.h>

namespace pl::bandwidth {
namespace {

bound_transfer one(bool measured = true, unsigned copies = 0, executor_kind kind = executor_kind::ce) {
  bound_transfer out;
  out.bytes = 4096;
  out.executor.kind = kind;
  out.measured = measured;
  out.copies = copies;
  return out;
}

method make_settings(unsigned copies, std::uint64_t min_sample_ns, bool balance = true) {
  method settings;
  settings.copies = copies;
  settings.min_sample_ns = min_sample_ns;
  settings.balance = balance;
  return settings;
}

using counts = std::vector<std::uint64_t>;

TEST(copy_plan, short_samples_are_lengthened_and_long_ones_are_not) {
  const std::vector<bound_transfer> set{one()};
  EXPECT_EQ(balanced_copies(set, make_settings(16, 200'000), std::vector{1000.0}), counts{200});
  EXPECT_EQ(balanced_copies(set, make_settings(16, 200'000), std::vector{50'000.0}), counts{16});
  EXPECT_FALSE(needs_probe(set, make_settings(16, 0)));
  EXPECT_EQ(wanted_copies(set, make_settings(16, 0)), counts{16});
}

TEST(copy_plan, all_end_at_about_the_same_time) {
  const std::vector<bound_transfer> set{one(), one(), one(false)};
  // The slowest needs 16 * 1000 ns; interference lasts no less than that.
  EXPECT_EQ(balanced_copies(set, make_settings(16, 0), std::vector{1000.0, 400.0, 900.0}), (counts{16, 40, 18}));
  EXPECT_EQ(balanced_copies(set, make_settings(16, 32'000), std::vector{1000.0, 400.0, 900.0}), (counts{32, 80, 36}));
  EXPECT_EQ(balanced_copies(set, make_settings(16, 0, false), std::vector{1000.0, 400.0, 900.0}), (counts{16, 16, 16}));
}

TEST(copy_plan, numbers_that_the_caller_fixed_stay) {
  const std::vector<bound_transfer> set{one(true, 3), one()};
  EXPECT_EQ(balanced_copies(set, make_settings(16, 1'000'000), std::vector{1000.0, 1000.0}), (counts{3, 1000}));
}

TEST(copy_plan, what_had_been_copied_when_another_ended) {
  const std::vector<double> each{100, 200, 300, 400};
  EXPECT_DOUBLE_EQ(copies_until(each, 1, 4, 400), 4);
  EXPECT_DOUBLE_EQ(copies_until(each, 1, 4, 250), 2.5);
  EXPECT_DOUBLE_EQ(copies_until(each, 1, 4, 0), 0);
  EXPECT_DOUBLE_EQ(copies_until(each, 1, 4, 500), 4);
  // One trace after every third copy, seven copies; faster once the other has ended.
  const std::vector<double> thirds{300, 600, 650};
  EXPECT_DOUBLE_EQ(copies_until(thirds, 3, 7, 450), 4.5);
  EXPECT_DOUBLE_EQ(copies_until(thirds, 3, 7, 625), 6.5);
}

TEST(copy_plan, transfers_ran_together_between_the_last_start_and_the_first_end) {
  using list = std::vector<double>;
  const auto together = common_span(list{0, 5, 2}, list{100, 120, 90});
  EXPECT_DOUBLE_EQ(together.from_ns, 5);
  EXPECT_DOUBLE_EQ(together.to_ns, 92);
  EXPECT_DOUBLE_EQ(together.length_ns(), 87);
  // One engine, three streams, one after the other.
  EXPECT_DOUBLE_EQ(common_span(list{0, 100, 200}, list{100, 100, 100}).length_ns(), 0);
  EXPECT_DOUBLE_EQ(common_span(list{0}, list{70}).length_ns(), 70);
}

TEST(copy_plan, no_window_holds_more_than_a_launch_queue) {
  const std::vector<bound_transfer> set{one(), one(true, 0, executor_kind::sm)};
  method settings = make_settings(16, 0);
  settings.warm_up = 4;
  EXPECT_EQ(windows_for(set, settings, counts{508, 100'000}), 1u);
  EXPECT_EQ(windows_for(set, settings, counts{509, 1}), 2u);
  settings.warm_up = 100'000;
  EXPECT_EQ(windows_for(set, settings, counts{7, 1}), 7u);
}

}  // namespace
}  // namespace pl::bandwidth
