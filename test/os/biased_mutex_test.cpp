// SPDX-License-Identifier: Apache-2.0
// A biased mutex excludes: while one thread uses it, at the moment when others come, and afterwards.
#include "os/biased_mutex.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace pl {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kTrials = 100;
#else
constexpr int kTrials = 2000;
#endif
constexpr int kRounds = 300;

// Not atomic: two threads inside at once lose a count, and ThreadSanitizer sees them. Most of the time a thread is inside.
struct guarded {
  biased_mutex mutex;
  int count = 0;
  void add() {
    constexpr int kStay = 100;
    const std::lock_guard lock(mutex);
    const int before = count;
    for (int i = 0; i < kStay; ++i) std::atomic_signal_fence(std::memory_order_seq_cst);
    count = before + 1;
  }
};

TEST(biased_mutex, one_thread_goes_in_and_out) {
  guarded shared;
  for (int i = 0; i < kRounds; ++i) shared.add();
  EXPECT_EQ(shared.count, kRounds);
}

// In each trial the owner is somewhere in its rounds when the others come.
TEST(biased_mutex, others_come_while_the_owner_works) {
  for (int trial = 0; trial < kTrials; ++trial) {
    auto shared = std::make_unique<guarded>();
    std::atomic<int> begun{0};
    std::vector<std::jthread> others;
    for (int other = 0; other < 2; ++other)
      others.emplace_back([&] {
        while (begun.load() <= trial % kRounds) std::this_thread::yield();
        for (int i = 0; i < kRounds; ++i) shared->add();
      });
    for (int i = 0; i < kRounds; ++i) {
      shared->add();
      begun.store(i + 1);
    }
    others.clear();
    ASSERT_EQ(shared->count, 3 * kRounds);
  }
}

TEST(biased_mutex, threads_that_begin_together) {
  for (int trial = 0; trial < kTrials; ++trial) {
    auto shared = std::make_unique<guarded>();
    std::atomic<bool> go{false};
    std::vector<std::jthread> all;
    for (int thread = 0; thread < 3; ++thread)
      all.emplace_back([&] {
        while (!go.load()) std::this_thread::yield();
        for (int i = 0; i < kRounds; ++i) shared->add();
      });
    go.store(true);
    all.clear();
    ASSERT_EQ(shared->count, 3 * kRounds);
  }
}

// By which a thread that locks it again and again stands back.
TEST(biased_mutex, tells_that_another_thread_waits) {
  guarded shared;
  shared.add();
  std::jthread([&] { shared.add(); }).join();  // from now on a mutex of all threads
  EXPECT_FALSE(shared.mutex.is_wanted());
  shared.mutex.lock();
  std::jthread other([&] { shared.add(); });
  while (!shared.mutex.is_wanted()) std::this_thread::yield();
  shared.mutex.unlock();
  other.join();
  EXPECT_FALSE(shared.mutex.is_wanted());
  EXPECT_EQ(shared.count, 3);
}

}  // namespace
}  // namespace pl
