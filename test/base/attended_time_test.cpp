// SPDX-License-Identifier: Apache-2.0
#include "base/attended_time.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace pl {
namespace {

using namespace std::chrono_literals;

// A pause between two looks, as of a machine that stands still, is a quarter of each limit at most, also of a short one.
TEST(attended_time, one_pause_passes_no_limit) {
  for (const auto limit : {40ms, 200ms, 400ms}) {
    attended_time waited;
    std::this_thread::sleep_for(2 * limit);
    EXPECT_FALSE(waited.has_reached(limit)) << limit.count();
    EXPECT_LE(waited.passed_ms(), limit / 4) << limit.count();
  }
}

TEST(attended_time, a_limit_is_reached_by_polling_only) {
  const auto begin = std::chrono::steady_clock::now();
  attended_time waited;
  int checks = 0;
  for (; !waited.has_reached(80ms); ++checks) {
    ASSERT_LE(waited.next_poll(80ms), 10ms);
    ASSERT_LT(checks, 1000);
    std::this_thread::sleep_for(waited.next_poll(80ms));
  }
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 80ms);
  EXPECT_GE(checks, 4);
  EXPECT_TRUE(attended_time().has_reached(0ms));
}

TEST(attended_time, long_limits_are_polled_once_a_second) {
  EXPECT_EQ(attended_time::poll_interval(8s), 1000ms);
  EXPECT_EQ(attended_time::poll_interval(24h), 1000ms);
  EXPECT_EQ(attended_time::poll_interval(0ms), 1ms);
}

}  // namespace
}  // namespace pl
