// SPDX-License-Identifier: Apache-2.0
#include "base/raise_to.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace pl {
namespace {

TEST(RaiseTo, RaisesAndNeverLowers) {
  std::atomic<unsigned> number{3};
  EXPECT_EQ(raise_to(number, 5u, std::memory_order_relaxed), 5u);
  EXPECT_EQ(raise_to(number, 4u, std::memory_order_acq_rel), 5u) << "the greater number of somebody else";
  EXPECT_EQ(number.load(), 5u);
}

TEST(RaiseTo, KeepsTheMaximumOfSeveralThreads) {
  constexpr unsigned kThreads = 4, kSteps = 10'000;
  std::atomic<unsigned> number{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i)
    threads.emplace_back([&number, i] {
      for (unsigned step = 0; step < kSteps; ++step) {
        const unsigned mine = step * kThreads + i;
        EXPECT_GE(raise_to(number, mine, std::memory_order_relaxed), mine);
      }
    });
  for (auto& one : threads) one.join();
  EXPECT_EQ(number.load(), kThreads * kSteps - 1);
}

}  // namespace
}  // namespace pl
