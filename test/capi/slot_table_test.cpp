// SPDX-License-Identifier: Apache-2.0
#include "capi/slot_table.hpp"

#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

namespace pl {
namespace {

using table = slot_table<std::unique_ptr<int>>;

TEST(slot_table, a_number_names_its_object_until_it_is_taken) {
  table all;
  const auto number = all.add(std::make_unique<int>(7));
  ASSERT_NE(number, 0u);
  ASSERT_NE(all.find(number), nullptr);
  EXPECT_EQ(**all.find(number), 7);
  EXPECT_EQ(*all.take(number), 7);
  EXPECT_EQ(all.find(number), nullptr);
  EXPECT_EQ(all.take(number), nullptr);
  // The place is used again, the number is not.
  const auto next = all.add(std::make_unique<int>(8));
  EXPECT_EQ(static_cast<std::uint32_t>(next), static_cast<std::uint32_t>(number));
  EXPECT_NE(next, number);
  EXPECT_EQ(all.find(number), nullptr);
}

TEST(slot_table, any_number_may_be_asked_for) {
  table all;
  all.add(std::make_unique<int>(1));
  for (const std::uint64_t number : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{2} << 32, std::uint64_t{1} << 32 | 1,
                                     std::uint64_t{1} << 32 | 0xffffffffu, ~std::uint64_t{0}})
    EXPECT_EQ(all.find(number), nullptr) << number;
}

TEST(slot_table, grows_without_moving_what_is_there_and_ends_all) {
  const auto counted = std::make_shared<int>(0);
  slot_table<std::shared_ptr<int>> all;
  const auto first = all.add(std::shared_ptr<int>(counted));
  const auto* const found = all.find(first);
  std::set<std::uint64_t> numbers{first};
  for (int i = 0; i < 10'000; ++i) numbers.insert(all.add(std::shared_ptr<int>(counted)));
  EXPECT_EQ(numbers.size(), 10'001u);
  EXPECT_EQ(all.find(first), found);
  EXPECT_EQ(counted.use_count(), 10'002);
  all.clear();
  EXPECT_EQ(counted.use_count(), 1);
  EXPECT_EQ(all.find(first), nullptr);
}

TEST(slot_table, threads_make_and_end_objects_at_the_same_time) {
  table all;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5000; ++i) {
        const auto a = all.add(std::make_unique<int>(t)), b = all.add(std::make_unique<int>(t + 100));
        if (**all.find(a) != t || *all.take(b) != t + 100 || *all.take(a) != t) ++wrong;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace pl
