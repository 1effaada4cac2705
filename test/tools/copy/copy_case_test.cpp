// SPDX-License-Identifier: Apache-2.0
#include "tools/copy/copy_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace pl::tools {
namespace {

using copy::direction;
using copy::method;
using copy::other_side;

TEST(copy_cases, all_by_default) {
  const auto all = parse_cases({}, {});
  ASSERT_TRUE(all);
  EXPECT_EQ(all->size(), 6u);
  EXPECT_EQ(*parse_cases({"all"}, {"all"}), *all);
  std::vector<std::string> labels;
  for (const auto& one : *all) labels.push_back(std::string(direction_label(one)) + " " + memory_label(one));
  EXPECT_EQ(labels, (std::vector<std::string>{"h2d pinned", "h2d pageable", "d2h pinned", "d2h pageable", "d2d device",
                                              "p2p device"}));
}

TEST(copy_cases, lists_choose_and_memory_is_the_hosts_only) {
  const auto some = parse_cases({"d2h", "p2p"}, {"pageable"});
  ASSERT_TRUE(some);
  EXPECT_EQ(*some, (std::vector<copy_case>{{direction::to_host, other_side::pageable},
                                           {direction::on_device, other_side::peer_gpu}}));
}

TEST(copy_cases, unknown_words_are_named) {
  const auto bad = parse_cases({"up"}, {});
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().message.find("\"up\""), std::string::npos);
  EXPECT_FALSE(parse_cases({}, {"virtual"}));
}

TEST(sweep_sizes, powers_of_two_with_both_ends) {
  EXPECT_EQ(sweep_sizes(1, 8, false), (std::vector<std::uint64_t>{1, 2, 4, 8}));
  EXPECT_EQ(sweep_sizes(3, 20, false), (std::vector<std::uint64_t>{3, 4, 8, 16, 20}));
  EXPECT_EQ(sweep_sizes(7, 7, false), (std::vector<std::uint64_t>{7}));
}

TEST(sweep_sizes, odd_sizes_lie_inside_and_rise) {
  const auto sizes = sweep_sizes(1, 1u << 20, true);
  EXPECT_TRUE(std::is_sorted(sizes.begin(), sizes.end()));
  EXPECT_EQ(std::adjacent_find(sizes.begin(), sizes.end()), sizes.end());
  for (const std::uint64_t wanted : {3u, 100u, 961u, 1000u, 5000u, 100001u, 1000003u})
    EXPECT_NE(std::find(sizes.begin(), sizes.end(), wanted), sizes.end()) << wanted;
  EXPECT_LE(sizes.back(), 1u << 20);
}

TEST(sweep_sizes, the_largest_power_ends_the_loop) { EXPECT_EQ(sweep_sizes(1ull << 62, 1ull << 63, false).size(), 2u); }

TEST(method_filter, whole_names_and_methods) {
  EXPECT_TRUE(is_wanted({}, "cpu_store x4"));
  EXPECT_TRUE(is_wanted({"cpu_store"}, "cpu_store x4"));
  EXPECT_TRUE(is_wanted({"cpu_store x4"}, "cpu_store x4"));
  EXPECT_FALSE(is_wanted({"cpu_store x4"}, "cpu_store"));
  EXPECT_FALSE(is_wanted({"planner"}, "planner_registered"));
}

TEST(envelope, the_best_single_way_is_what_counts) {
  const std::vector<measured_method> all = {
      {"cpu_store", 300, true}, {"cuMemcpy", 200, true, false}, {"planner", 250, false}, {"planner_registered", 100, false}};
  const auto verdict = judge(all);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->best_method, "cuMemcpy");
  EXPECT_EQ(verdict->best_available, "cpu_store");
  EXPECT_EQ(verdict->best_available_ns, 300);
  EXPECT_EQ(verdict->planner_ns, 250);
  EXPECT_DOUBLE_EQ(verdict->ratio, 1.25);
  EXPECT_FALSE(verdict->exceeds) << "50 ns are within the allowance";
  EXPECT_EQ(judge(all, "planner_registered")->ratio, 0.5);
}

TEST(envelope, both_allowances_must_be_exceeded) {
  EXPECT_FALSE(exceeds_envelope(190, 100));
  EXPECT_TRUE(exceeds_envelope(201, 100));
  EXPECT_FALSE(exceeds_envelope(10'900, 10'000));
  EXPECT_TRUE(exceeds_envelope(11'001, 10'000));
  EXPECT_FALSE(exceeds_envelope(50, 100));
}

TEST(envelope, nothing_without_a_planner_or_a_single_way) {
  EXPECT_FALSE(judge({}));
  const std::vector<measured_method> no_planner = {{"cpu_store", 1, true}};
  EXPECT_FALSE(judge(no_planner));
  const std::vector<measured_method> only_planner = {{"planner", 1, false}};
  EXPECT_FALSE(judge(only_planner));
}

TEST(paired_comparison, the_interval_holds_the_median_as_often_as_it_says) {
  EXPECT_EQ(median_interval({}).middle, 0);
  const auto few = median_interval({3, 1, 2});
  EXPECT_TRUE(few.low == 1 && few.middle == 2 && few.high == 3) << "too few to leave any out";
  std::minstd_rand random(7);
  std::uniform_real_distribution<double> uniform(0, 1);
  int held = 0;
  constexpr int kTimes = 2000;
  for (int i = 0; i < kTimes; ++i) {
    std::vector<double> values(40);
    for (auto& value : values) value = uniform(random);
    const auto found = median_interval(values);
    EXPECT_TRUE(found.low <= found.middle && found.middle <= found.high);
    held += found.low <= 0.5 && 0.5 <= found.high ? 1 : 0;
  }
  EXPECT_GE(held, kTimes * 95 / 100);
  EXPECT_LE(held, kTimes * 99 / 100) << "an interval that says nothing";
}

std::vector<sample_pair> pairs_of(double planner_ns, double best_ns, double noise_ns) {
  std::minstd_rand random(11);
  std::normal_distribution<double> noise(0, noise_ns);
  std::vector<sample_pair> out(60);
  for (auto& one : out) one = {planner_ns + noise(random), best_ns + noise(random)};
  return out;
}

TEST(paired_comparison, only_what_is_sure_exceeds) {
  EXPECT_FALSE(compare_pairs({}).exceeds);
  EXPECT_FALSE(compare_pairs(pairs_of(5000, 5000, 300)).exceeds) << "the same way twice";
  EXPECT_FALSE(compare_pairs(pairs_of(5490, 5000, 300)).exceeds) << "within the allowance";
  EXPECT_FALSE(compare_pairs(pairs_of(5510, 5000, 2000)).exceeds) << "above it, as far as one can tell";
  const auto sure = compare_pairs(pairs_of(6000, 5000, 300));
  EXPECT_TRUE(sure.exceeds);
  EXPECT_NEAR(sure.ratio.middle, 1.2, 0.05);
  EXPECT_TRUE(sure.ratio.low > 1.1 && sure.ratio.high < 1.3);
  EXPECT_NEAR(sure.planner_ns, 6000, 200);
  EXPECT_FALSE(compare_pairs(pairs_of(290, 200, 5)).exceeds) << "100 ns are nothing";
}

TEST(dominant_choice, forced_copies_are_not_the_planners) {
  std::uint64_t before[copy::kMethods] = {}, after[copy::kMethods] = {}, forced[copy::kMethods] = {};
  const auto index_of = [](method one) { return static_cast<std::size_t>(one); };
  before[index_of(method::cpu_store)] = 5;
  after[index_of(method::cpu_store)] = 1005;
  forced[index_of(method::cpu_store)] = 1000;
  after[index_of(method::copy_engine)] = 40;
  forced[index_of(method::copy_engine)] = 30;
  const auto taken = max_taken(before, after, forced);
  EXPECT_EQ(taken.method, method::copy_engine);
  EXPECT_EQ(taken.share, 1.0);
  EXPECT_EQ(max_taken(after, after, before).share, 0) << "nothing was copied";
}

TEST(dominant_choice, text_has_the_width_of_the_table_and_a_share_below_all) {
  const auto& costs = copy::cost_table::built_in();
  const copy_case to_host{direction::to_host, other_side::pinned};
  const auto hot = costs.pick(to_host.way, to_host.side, copy::executor::kernel, 65536);
  ASSERT_EQ(hot.kind, method::engine_copy);
  EXPECT_EQ(to_text({hot.kind, 1.0}, costs, to_host, 65536), copy::to_text(hot));
  EXPECT_EQ(to_text({method::bounce, 0.5}, costs, to_host, 65536), "bounce 50 %");
  EXPECT_EQ(to_text({method::bounce, 0}, costs, to_host, 65536), "-");
}

}  // namespace
}  // namespace pl::tools
