// SPDX-License-Identifier: Apache-2.0
#include "arch/short_mutex.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <thread>
#include <vector>

namespace pl {
namespace {

TEST(ShortMutex, OneOwnerAtATime) {
  short_mutex mutex;
  std::uint64_t sum = 0;
  std::vector<std::thread> all;
  for (int t = 0; t < 6; ++t)
    all.emplace_back([&] {
      for (int i = 0; i < 20'000; ++i) {
        const std::lock_guard lock(mutex);
        ++sum;
      }
    });
  for (std::thread& one : all) one.join();
  EXPECT_EQ(sum, 120'000u);
}

// Much longer than it looks for the mutex.
TEST(ShortMutex, WhoWaitsLongSleepsAndIsWoken) {
  short_mutex mutex;
  std::unique_lock held(mutex);
  std::atomic<bool> is_locked{false};
  std::thread waiting([&] {
    const std::lock_guard lock(mutex);
    is_locked = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(is_locked);
  held.unlock();
  waiting.join();
}

TEST(ShortMutex, AConditionVariableTakesIt) {
  short_mutex mutex;
  std::condition_variable changed;
  int turn = 0;
  const auto play = [&](int mine) {
    for (int i = 0; i < 1000; ++i) {
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [&] { return turn % 2 == mine; });
      ++turn;
      changed.notify_one();
    }
  };
  std::thread other(play, 1);
  play(0);
  other.join();
  EXPECT_EQ(turn, 2000);
}

}  // namespace
}  // namespace pl
