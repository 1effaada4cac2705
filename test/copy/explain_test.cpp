// SPDX-License-Identifier: Apache-2.0
#include "copy/explain.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace pl::copy {
namespace {

constexpr auto kWay = direction::to_host;
constexpr auto kSide = other_side::pinned;
constexpr std::pair<direction, other_side> kCases[] = {
    {direction::to_device, other_side::pinned},   {direction::to_device, other_side::pageable},
    {direction::to_host, other_side::pinned},     {direction::to_host, other_side::pageable},
    {direction::on_device, other_side::same_gpu}, {direction::on_device, other_side::peer_gpu}};

// Loads to about 2 KiB, the engine to about 1 MiB, DMA above.
cost_table three_ways() {
  return cost_table({{kWay, kSide, {method::cpu_load, 1}, {{1, 1000}, {65536, 67000}}},
                     {kWay, kSide, {method::engine_copy, 1}, {{1, 3000}, {1 << 20, 50000}}},
                     {kWay, kSide, {method::copy_engine, 1}, {{1, 8000}, {1 << 24, 300000}}}});
}

const alternative& find(const std::vector<alternative>& all, choice option) {
  return *std::find_if(all.begin(), all.end(), [&](const alternative& one) { return one.option == option; });
}

TEST(crossovers, every_size_goes_the_way_that_the_table_picks) {
  for (const auto& costs : {three_ways(), cost_table::built_in()})
    for (const auto& [way, side] : kCases)
      for (const executor present : {executor::channel, executor::kernel, executor::none}) {
        const auto list = crossovers(costs, way, side, present);
        ASSERT_FALSE(list.empty());
        EXPECT_EQ(list.back().up_to_bytes, UINT64_MAX);
        std::size_t position = 0;
        for (std::uint64_t bytes = 1; bytes < 1ull << 33; bytes += 1 + bytes / 7) {
          while (bytes > list[position].up_to_bytes) ++position;
          ASSERT_EQ(list[position].option, costs.pick(way, side, present, bytes)) << bytes;
        }
        for (std::size_t i = 1; i < list.size(); ++i) {
          EXPECT_LT(list[i - 1].up_to_bytes, list[i].up_to_bytes);
          EXPECT_NE(list[i - 1].option, list[i].option);
        }
      }
}

TEST(crossovers, a_cold_engine_is_not_in_them) {
  const auto costs = three_ways();
  const auto hot = crossovers(costs, kWay, kSide, executor::kernel), cold = crossovers(costs, kWay, kSide, executor::none);
  EXPECT_EQ(hot.size(), 3u);
  EXPECT_EQ(cold.size(), 2u);
  EXPECT_EQ(to_text(cold).find("engine_copy"), std::string::npos);
  EXPECT_NE(to_text(hot).find("below "), std::string::npos);
  EXPECT_EQ(to_text({{UINT64_MAX, {method::bounce, 4}}}), "all sizes: bounce x4");
}

TEST(explanation, the_taken_way_comes_first_and_the_others_have_reasons) {
  const auto all = alternatives(three_ways(), kWay, kSide, executor::kernel, 64u << 10);
  ASSERT_FALSE(all.empty());
  EXPECT_TRUE(all[0].is_taken);
  EXPECT_EQ(all[0].option, (choice{method::engine_copy, 1}));
  EXPECT_EQ(all[0].reason, "taken");
  EXPECT_EQ(std::count_if(all.begin(), all.end(), [](const alternative& one) { return one.is_taken; }), 1);
  EXPECT_NE(find(all, {method::copy_engine, 1}).reason.find("x slower"), std::string::npos);
  EXPECT_EQ(find(all, {method::engine_low_latency, 1}).reason, "only up to 32 KiB");
  EXPECT_NE(find(all, {method::engine_copy, 2}).reason.find("not in this table"), std::string::npos);
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end(),
                             [](const alternative& a, const alternative& b) { return a.expected_ns < b.expected_ns; }));
}

TEST(explanation, a_cold_engine_is_the_reason) {
  const auto all = alternatives(three_ways(), kWay, kSide, executor::none, 64u << 10);
  EXPECT_EQ(find(all, {method::engine_copy, 1}).reason, "the copy kernel is not resident");
  EXPECT_TRUE(find(all, {method::copy_engine, 1}).is_taken);
}

TEST(explanation, the_text_has_all_of_it) {
  const auto text = explain(three_ways(), "a test", kWay, kSide, executor::kernel, 64u << 10);
  EXPECT_EQ(text.find("64 KiB to_host, pinned, executor copy kernel: engine_copy\n"), 0u) << text;
  for (const auto& one : alternatives(three_ways(), kWay, kSide, executor::kernel, 64u << 10))
    EXPECT_NE(text.find("  " + to_text(one.option) + " "), std::string::npos) << text;
  EXPECT_NE(text.find("ways by size: " + to_text(crossovers(three_ways(), kWay, kSide, executor::kernel))),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("costs: a test\n"), std::string::npos) << text;
}

TEST(explanation, sizes_below_a_limit) {
  const auto all = alternatives(three_ways(), kWay, kSide, executor::kernel, 64);
  EXPECT_EQ(find(all, {method::engine_copy, 2}).reason, "only for 16 KiB and more");
  EXPECT_TRUE(find(all, {method::cpu_load, 1}).is_taken);
}

TEST(explanation, without_any_curve_dma_is_taken_and_said_to_be_the_last_resort) {
  const auto all = alternatives(three_ways(), direction::to_device, other_side::pageable, executor::kernel, 100);
  const auto& taken = find(all, {method::copy_engine, 1});
  EXPECT_TRUE(taken.is_taken);
  EXPECT_TRUE(std::isinf(taken.expected_ns));
  EXPECT_NE(taken.reason.find("DMA"), std::string::npos);
}

}  // namespace
}  // namespace pl::copy
