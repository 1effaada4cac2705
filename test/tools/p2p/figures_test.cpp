// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p/figures.hpp"

#include <gtest/gtest.h>

namespace pl::p2p {
namespace {

measurement measurement_of(std::size_t size_bytes, int window, int pairs) {
  measurement out;
  out.size_bytes = size_bytes;
  out.window = window;
  out.pairs = pairs;
  return out;
}

TEST(Figures, UnitsOfOsu) {
  EXPECT_DOUBLE_EQ(figure_of(benchmark::latency, measurement_of(8, 1, 1), 3000), 1.5);  // half a round trip
  // 64 messages of 1000 bytes in 64 us are 1000 MB/s, with 10^6 bytes to the MB.
  EXPECT_DOUBLE_EQ(figure_of(benchmark::bandwidth, measurement_of(1000, 64, 1), 64000), 1000);
  EXPECT_DOUBLE_EQ(figure_of(benchmark::bidirectional, measurement_of(1000, 64, 1), 64000), 2000);
  EXPECT_DOUBLE_EQ(figure_of(benchmark::multi_bandwidth, measurement_of(1000, 64, 4), 64000), 4000);
}

TEST(Figures, PercentilesAreSamples) {
  auto one = measurement_of(1, 1, 1);
  for (int i = 1; i <= 100; ++i) one.samples_ns.push_back(i * 2000.0);
  EXPECT_DOUBLE_EQ(percentile_figure(benchmark::latency, one, 99), 99);
  EXPECT_DOUBLE_EQ(median_figure(benchmark::latency, one), 50);
  EXPECT_EQ(percentile_name(99.9), "p99.9");
  EXPECT_EQ(percentile_name(50), "p50");
}

TEST(Figures, HeadlineIsTheMedianBatch) {
  auto one = measurement_of(1, 1, 1);
  one.batch_values = {9, 1, 2};
  EXPECT_DOUBLE_EQ(headline(one), 2);
}

TEST(Figures, RowHoldsOneWayTimes) {
  settings asked;
  asked.percentiles = {99.9};
  asked.validate = true;
  auto one = measurement_of(8, 1, 1);
  one.samples_ns = {2000, 4000};
  one.batch_values = {1.5};
  const auto row = result_row(asked, one);
  EXPECT_EQ(row["latency_ns_p50"], 1000.0);
  EXPECT_EQ(row["latency_us"], 1.5);
  EXPECT_EQ(row["latency_us_p99.9"], 2.0);
  EXPECT_EQ(row["validation"], "Pass");
  EXPECT_EQ(row["benchmark"], "latency");
}

TEST(Repetitions, OsuConstants) {
  const auto pair_of = [](benchmark kind, std::size_t size) {
    settings asked;
    asked.kind = kind;
    const auto found = repetition_at(asked, size);
    return std::pair(found.iterations, found.warm_up);
  };
  EXPECT_EQ(pair_of(benchmark::latency, 8192), std::pair(10000, 100));
  EXPECT_EQ(pair_of(benchmark::latency, 8193), std::pair(1000, 10));
  EXPECT_EQ(pair_of(benchmark::multi_latency, 16384), std::pair(1000, 10));
  EXPECT_EQ(pair_of(benchmark::bandwidth, 8192), std::pair(100, 10));
  EXPECT_EQ(pair_of(benchmark::bidirectional, 16384), std::pair(20, 2));
  EXPECT_EQ(pair_of(benchmark::multi_bandwidth, 16384), std::pair(100, 10));
  settings asked;
  asked.iterations = 7;
  EXPECT_EQ(repetition_at(asked, 1 << 20).iterations, 7);
  EXPECT_EQ(repetition_at(asked, 1 << 20).warm_up, 10);
}

TEST(Sizes, DoubleFromTheFormatsSmallest) {
  settings asked;
  asked.max_bytes = 8;
  EXPECT_EQ(sizes_of(asked), (std::vector<std::size_t>{0, 1, 2, 4, 8}));
  asked.format = osu_format::v7_5;
  EXPECT_EQ(sizes_of(asked).front(), 1u);
  asked.min_bytes = 3;
  EXPECT_EQ(sizes_of(asked), (std::vector<std::size_t>{3, 6}));
  asked.kind = benchmark::bandwidth;
  asked.min_bytes.reset();
  EXPECT_EQ(sizes_of(asked).front(), 1u);
}

}  // namespace
}  // namespace pl::p2p
