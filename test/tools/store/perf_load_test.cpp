// SPDX-License-Identifier: Apache-2.0
#include "tools/store/perf_load.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace pl::store_tools {
namespace {

TEST(perf_load, SharesOfTheMixes) {
  struct {
    const char* test;
    std::map<perf_kind, double> shares;
  } const cases[] = {
      {"put", {{perf_kind::put, 1}}},
      {"get_direct", {{perf_kind::get, 1}}},
      {"ycsb-a", {{perf_kind::get, 0.5}, {perf_kind::put, 0.5}}},
      {"ycsb-b", {{perf_kind::get, 0.95}, {perf_kind::put, 0.05}}},
      {"ycsb-c", {{perf_kind::get, 1}}},
      {"ycsb-d", {{perf_kind::get, 0.95}, {perf_kind::insert, 0.05}}},
      {"ycsb-e", {{perf_kind::scan, 0.95}, {perf_kind::insert, 0.05}}},
      {"ycsb-f", {{perf_kind::get, 0.5}, {perf_kind::read_modify_write, 0.5}}},
      {"llm", {{perf_kind::get, 0.9}, {perf_kind::put, 0.1}}},
  };
  for (const auto& one : cases) {
    perf_load load(*mix_of(one.test, 0), 1000, 1, 1, 0);
    std::map<perf_kind, double> seen;
    for (int i = 0; i < 20'000; ++i) seen[load.next().kind] += 1.0 / 20'000;
    for (const auto& [kind, share] : one.shares) EXPECT_NEAR(seen[kind], share, 0.02) << one.test;
    EXPECT_EQ(seen.size(), one.shares.size()) << one.test;
  }
  EXPECT_FALSE(mix_of("ycsb-g", 0));
  EXPECT_FALSE(mix_of("", 0));
}

TEST(perf_load, PopularKeysAreFewAndSpread) {
  const zipfian popular(10'000);
  std::mt19937_64 random(1);
  std::map<std::uint64_t, int> seen;
  for (int i = 0; i < 100'000; ++i) ++seen[popular.scattered(static_cast<double>(random() >> 11) * 0x1.0p-53)];
  std::vector<int> counts;
  for (const auto& [key, count] : seen) {
    EXPECT_LT(key, 10'000u);
    counts.push_back(count);
  }
  std::sort(counts.rbegin(), counts.rend());
  EXPECT_NEAR(counts[0], 10'400, 800);  // 1 / zeta(10000, 0.99)
  EXPECT_NEAR(counts[1], 10'400 / 1.99, 500);
}

TEST(perf_load, ClientsShareTheKeysInOrderAndInsertDifferentOnes) {
  std::set<std::uint64_t> keys;
  for (std::uint64_t client = 0; client < 3; ++client) {
    perf_load load(*mix_of("put", 8), 99, 1, 3, client);
    for (int i = 0; i < 33; ++i) EXPECT_TRUE(keys.insert(load.next().key).second);
  }
  EXPECT_EQ(*keys.rbegin(), 98u);
  keys.clear();
  for (std::uint64_t client = 0; client < 3; ++client) {
    perf_load load(*mix_of("ycsb-d", 0), 100, 1, 3, client);
    for (int i = 0; i < 500; ++i) {
      const auto step = load.next();
      if (step.kind != perf_kind::insert) continue;
      EXPECT_GE(step.key, 100u);
      EXPECT_TRUE(keys.insert(step.key).second);
    }
  }
}

TEST(perf_load, SizesOfTheCacheLieWithinItsRange) {
  const perf_load load(*mix_of("llm", 0), 1000, 1, 1, 0);
  std::uint64_t lowest = ~0ull, highest = 0;
  for (std::uint64_t key = 0; key < 1000; ++key) {
    EXPECT_EQ(load.bytes_of(key), load.bytes_of(key));
    lowest = std::min(lowest, load.bytes_of(key));
    highest = std::max(highest, load.bytes_of(key));
  }
  EXPECT_GE(lowest, 64u << 10);
  EXPECT_LT(lowest, 70u << 10);
  EXPECT_LE(highest, 32u << 20);
  EXPECT_GT(highest, 30u << 20);
}

TEST(latency_histogram, QuantilesAreRightToAFewPerCent) {
  latency_histogram one, two;
  EXPECT_EQ(one.quantile(0.5), 0u);
  for (std::uint64_t ns = 1; ns <= 100'000; ++ns) (ns % 2 == 0 ? one : two).add(ns * 10);
  one.merge(two);
  EXPECT_EQ(one.count(), 100'000u);
  EXPECT_EQ(one.highest(), 1'000'000u);
  EXPECT_NEAR(one.mean(), 500'005, 1);
  for (const double fraction : {0.01, 0.5, 0.9, 0.99, 0.999, 1.0})
    EXPECT_NEAR(static_cast<double>(one.quantile(fraction)), 1e6 * fraction, 1e6 * fraction * 0.017) << fraction;
  latency_histogram extreme;
  for (const std::uint64_t ns : {0ull, 1ull, 63ull, 64ull, 127ull, 128ull, ~0ull >> 1, ~0ull}) extreme.add(ns);
  EXPECT_EQ(extreme.quantile(1), ~0ull);
  EXPECT_EQ(extreme.quantile(0.01), 0u);
}

}  // namespace
}  // namespace pl::store_tools
