// SPDX-License-Identifier: Apache-2.0
#include "store/client/checksum_pool.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "arch/crc32c.hpp"
#include "test/support/scarce_threads.hpp"

namespace pl::store_client {
namespace {

using parts = std::vector<std::shared_ptr<value_part>>;

std::vector<std::byte> some_bytes(std::size_t count) {
  std::vector<std::byte> out(count);
  std::minstd_rand random(7);
  for (auto& one : out) one = static_cast<std::byte>(random());
  return out;
}

std::shared_ptr<value_part> part_of(const std::vector<std::byte>& all, std::size_t offset, std::size_t bytes) {
  auto out = std::make_shared<value_part>();
  out->source = all.data() + offset;
  out->bytes = bytes;
  return out;
}

bool all_summed(const parts& given) {
  for (const auto& one : given)
    if (!one->summed.load(std::memory_order_acquire)) return false;
  return true;
}

// No caller helps: a pool thread takes each part, also one that comes when all have just gone to sleep.
TEST(checksum_pool, sums_what_it_is_given_at_any_time) {
  const auto bytes = some_bytes(64 << 10);
  checksum_pool pool;
  std::minstd_rand random(1);
  for (unsigned round = 0; round < 200; ++round) {
    if (round % 3 == 0) pool.call(9);
    // Around the time after which they sleep.
    if (round % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
    parts given;
    for (unsigned i = 0; i < 1 + round % 9; ++i) {
      given.push_back(part_of(bytes, i * 4096, 4096 + i));
      pool.give({&given.back(), 1});
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!all_summed(given) && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    for (const auto& one : given) {
      ASSERT_TRUE(one->summed.load(std::memory_order_acquire)) << "round " << round << ": a part lies there and all sleep";
      ASSERT_EQ(one->crc, arch::crc32c(one->source, one->bytes));
    }
  }
}

// The caller sums what no thread can be started for; the next use tries again.
TEST(checksum_pool, without_a_thread_the_caller_sums) {
  const auto bytes = some_bytes(64 << 10);
  checksum_pool pool;
  std::optional<test::scarce_threads> none(std::in_place);
  EXPECT_EQ(pool.prepare().code(), EAGAIN);
  parts given{part_of(bytes, 0, 4096), part_of(bytes, 4096, 100)};
  pool.call(given.size());
  pool.give(given);
  none.reset();
  ASSERT_TRUE(all_summed(given));
  for (const auto& one : given) EXPECT_EQ(one->crc, arch::crc32c(one->source, one->bytes));
  EXPECT_FALSE(pool.help()) << "nothing waits";
  EXPECT_TRUE(pool.prepare());
}

// More at once than its queue holds.
TEST(checksum_pool, takes_any_number_of_parts) {
  const auto bytes = some_bytes(4096);
  checksum_pool pool;
  parts given;
  for (unsigned i = 0; i < 3000; ++i) given.push_back(part_of(bytes, 0, 1 + i));
  pool.give(given);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!all_summed(given) && std::chrono::steady_clock::now() < end)
    if (!pool.help()) std::this_thread::yield();
  ASSERT_TRUE(all_summed(given));
  for (const auto& one : given) ASSERT_EQ(one->crc, arch::crc32c(one->source, one->bytes));
}

// Threads that end at a store's end give parts to others that have ended.
TEST(checksum_pool, sums_what_comes_during_and_after_its_end) {
  const auto bytes = some_bytes(64 << 10);
  for (unsigned round = 0; round < 50; ++round) {
    checksum_pool pool;
    ASSERT_TRUE(pool.prepare());
    parts given;
    for (unsigned i = 0; i < 64; ++i) given.push_back(part_of(bytes, i << 10, 1 << 10));
    std::thread giver([&] {
      for (const auto& one : given) pool.give({&one, 1});
    });
    pool.end();
    giver.join();
    ASSERT_TRUE(all_summed(given)) << "round " << round;
    const auto late = part_of(bytes, 0, 100);
    pool.give({&late, 1});
    EXPECT_TRUE(late->summed.load());
    EXPECT_EQ(pool.prepare().code(), ESHUTDOWN);
    pool.end();
  }
}

TEST(checksum_pool, ends_with_every_part_summed) {
  const auto bytes = some_bytes(1 << 20);
  for (unsigned round = 0; round < 50; ++round) {
    parts given;
    {
      checksum_pool pool;
      if (round % 2 == 0) pool.call(9);
      for (unsigned i = 0; i < 16; ++i) {
        given.push_back(part_of(bytes, i << 16, 1 << 16));
        pool.give({&given.back(), 1});
      }
      if (round % 3 == 0) pool.help();
    }
    ASSERT_TRUE(all_summed(given)) << "round " << round;
  }
}

}  // namespace
}  // namespace pl::store_client
