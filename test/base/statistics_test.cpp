// SPDX-License-Identifier: Apache-2.0
#include "base/statistics.hpp"

#include <gtest/gtest.h>

namespace pl {
namespace {

TEST(Statistics, QuantilesAreMeasuredValues) {
  std::vector<double> samples;
  for (int i = 100; i >= 1; --i) samples.push_back(i);
  const summary s = summarize(samples);
  EXPECT_EQ(s.count, 100u);
  EXPECT_EQ(s.min, 1);
  EXPECT_EQ(s.max, 100);
  EXPECT_EQ(s.p50, 50);
  EXPECT_EQ(s.p99, 99);
  EXPECT_EQ(s.p999, 100);
  EXPECT_DOUBLE_EQ(s.mean, 50.5);
  EXPECT_NEAR(s.stddev, 29.011, 0.001);
  EXPECT_EQ(summarize({}).count, 0u);
}

TEST(Statistics, HistogramCountsEverySampleOnce) {
  const std::vector<double> samples{1, 1.5, 2, 9, 10, 10};
  const auto bins = make_histogram(samples, 3);
  ASSERT_EQ(bins.size(), 3u);
  EXPECT_EQ(bins[0].count, 3u);
  EXPECT_EQ(bins[1].count, 0u);
  EXPECT_EQ(bins[2].count, 3u);
  EXPECT_DOUBLE_EQ(bins[0].low, 1);
  EXPECT_DOUBLE_EQ(bins[2].high, 10);
  const auto flat = make_histogram(std::vector<double>{5, 5}, 4);
  EXPECT_EQ(flat[0].count, 2u);
}

}  // namespace
}  // namespace pl
