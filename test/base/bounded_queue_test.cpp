// SPDX-License-Identifier: Apache-2.0
#include "base/bounded_queue.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace pl {
namespace {

TEST(bounded_queue, is_full_and_empty_where_it_says_so) {
  bounded_queue<std::unique_ptr<int>, 4> queue;
  for (int round = 0; round < 10; ++round) {
    EXPECT_TRUE(queue.is_empty());
    EXPECT_FALSE(queue.pop());
    for (int i = 0; i < 4; ++i) {
      auto one = std::make_unique<int>(i);
      ASSERT_TRUE(queue.push(one));
      EXPECT_FALSE(queue.is_empty());
      EXPECT_EQ(queue.size(), static_cast<std::size_t>(i + 1));
    }
    auto fifth = std::make_unique<int>(4);
    EXPECT_FALSE(queue.push(fifth));
    ASSERT_NE(fifth, nullptr) << "what a full queue refuses stays the caller's";
    for (int i = 0; i < 4; ++i) {
      const auto one = queue.pop();
      ASSERT_TRUE(one);
      EXPECT_EQ(**one, i);
    }
  }
}

TEST(bounded_queue, holds_nothing_of_what_was_popped) {
  bounded_queue<std::shared_ptr<int>, 2> queue;
  auto one = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = one;
  ASSERT_TRUE(queue.push(one));
  (void)queue.pop();
  EXPECT_TRUE(watched.expired());
}

// Each value comes out once, and those of one producer in their order.
TEST(bounded_queue, loses_and_doubles_nothing_between_threads) {
  constexpr unsigned kProducers = 3, kConsumers = 3;
  constexpr std::uint32_t kEach = 20'000;
  bounded_queue<std::unique_ptr<std::uint32_t>, 8> queue;
  std::atomic<std::uint32_t> left{kProducers * kEach};
  std::vector<std::vector<std::uint32_t>> got(kConsumers);
  std::vector<std::thread> threads;
  for (std::uint32_t producer = 0; producer < kProducers; ++producer)
    threads.emplace_back([&, producer] {
      for (std::uint32_t i = 0; i < kEach; ++i) {
        auto one = std::make_unique<std::uint32_t>(producer << 24 | i);
        while (!queue.push(one)) std::this_thread::yield();
      }
    });
  for (auto& mine : got)
    threads.emplace_back([&] {
      while (left.load() != 0) {
        const auto one = queue.pop();
        if (!one) {
          std::this_thread::yield();
          continue;
        }
        mine.push_back(**one);
        --left;
      }
    });
  for (auto& one : threads) one.join();
  std::vector<unsigned> seen(kProducers * kEach);
  for (const auto& mine : got) {
    std::vector<std::int64_t> last(kProducers, -1);
    for (const std::uint32_t value : mine) {
      const std::uint32_t producer = value >> 24, number = value & 0xffffff;
      ++seen[producer * kEach + number];
      EXPECT_GT(std::int64_t{number}, last[producer]);
      last[producer] = number;
    }
  }
  for (const unsigned one : seen) ASSERT_EQ(one, 1u);
}

}  // namespace
}  // namespace pl
