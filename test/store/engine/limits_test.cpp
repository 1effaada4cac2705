// SPDX-License-Identifier: Apache-2.0
// What clients can make the engine keep beside values: keys without bytes, outcomes of long batches.
#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "test/store/engine/store_fixture.hpp"

namespace pl::store {
namespace {

class KeyMemory : public StoreTest {
 protected:
  static constexpr std::uint64_t kLimit = std::uint64_t{1} << 20;
  engine_options options() override {
    auto made = StoreTest::options();
    made.key_memory_bytes = kLimit;
    made.cache_of = [](const pool_info& pool) { return pool.name == "cache" ? std::optional(cache_terms{}) : std::nullopt; };
    return made;
  }
  static std::string long_key(int number) {
    std::string key = std::to_string(number);
    return key + std::string(4000 - key.size(), 'k');
  }
  int put(pool_id pool, const std::string& key, std::string_view value, durability level = durability::pool_default) {
    return store_->put(pool, key, as_bytes(value), {.level = level}).code();
  }
};

TEST_F(KeyMemory, VolatileValuesWithoutBytesHaveALimit) {
  const pool_id pool = make_pool("volatile", durability::volatile_);
  int count = 0;
  while (count < 2000 && put(pool, long_key(count), "") == 0) ++count;
  EXPECT_GT(count, 100);
  EXPECT_LT(count, 132);
  EXPECT_LE(store_->stats().key_bytes, kLimit);
  const std::string another_key = long_key(5000);
  const batch_operation another{.key = another_key, .value = {}};
  EXPECT_EQ(store_->batch(pool, {&another, 1}, {}).code(), ENOSPC);
  // What is there can be put again and erased, and durable values have room: their keys lie on disk.
  EXPECT_EQ(put(pool, long_key(0), "x"), 0);
  EXPECT_EQ(put(pool_, long_key(0), "x"), 0);
  EXPECT_EQ(put(pool, long_key(count), ""), ENOSPC);
  ASSERT_TRUE(store_->erase(pool, long_key(1)));
  // The durable value's entry leaves for it, once the thread that has committed it has let go of it.
  int code = ENOSPC;
  for (int i = 0; i < 5000 && code == ENOSPC; ++i) {
    if ((code = put(pool, long_key(count), "")) == ENOSPC) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(code, 0);
}

TEST_F(KeyMemory, CachesEvictForIt) {
  const pool_id pool = make_pool("cache", durability::volatile_);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(put(pool, long_key(i), ""), 0) << i;
  EXPECT_LE(store_->stats().key_bytes, kLimit);
  EXPECT_GT(store_->pool(pool)->counts.evicted, 800u);
  // A pool that is none takes their room.
  const pool_id other = make_pool("volatile", durability::volatile_);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(put(other, long_key(i), ""), 0) << i;
  EXPECT_LT(store_->pool(pool)->keys, 30u);
}

TEST_F(KeyMemory, IsFreeOfWhatTheIndexKnows) {
  for (int i = 0; i < 300; ++i) ASSERT_EQ(put(pool_, long_key(i), "", durability::logged), 0);
  EXPECT_EQ(store_->stats().key_bytes, 0u) << "values without bytes stay for ever";
  for (int i = 0; i < 300; ++i) EXPECT_EQ(read(*store_, pool_, long_key(i)), "");
  EXPECT_EQ(store_->stats().key_bytes, 0u);
  for (int i = 0; i < 300; ++i) ASSERT_EQ(put(pool_, long_key(i), "a value", durability::logged), 0);
  EXPECT_LT(store_->stats().key_bytes, kLimit + kLimit / 8);
  for (int i = 0; i < 300; ++i) EXPECT_EQ(read(*store_, pool_, long_key(i)), "a value");
}

class Remembered : public StoreTest {
 protected:
  // Erases of keys that are not there: each is an item of the outcome, and costs the engine little else.
  int batch(std::uint64_t client, std::uint64_t sequence) {
    std::vector<batch_operation> list(kMaxBatchOperations);
    for (batch_operation& one : list) one.action = batch_operation::kind::erase, one.key = "none";
    const auto done = store_->batch(pool_, list, {.level = durability::volatile_, .request = {client, sequence}});
    if (!done) return done.code();
    return done->repeated ? -1 : 0;
  }
};

TEST_F(Remembered, BatchesOfOneClientAreForgottenByTheirItems) {
  constexpr std::uint64_t kBatches = 60;
  for (std::uint64_t i = 1; i <= kBatches; ++i) ASSERT_EQ(batch(7, i), 0);
  EXPECT_LE(store_->stats().remembered_items, std::uint64_t{128} << 10);
  EXPECT_EQ(batch(7, kBatches), -1);
  EXPECT_EQ(batch(7, kBatches - 20), -1);
  EXPECT_EQ(batch(7, 1), EINVAL) << "what it did is forgotten, so it must not be done again";
}

// Clients are forgotten for others all the time, but not while one of their requests is carried out.
TEST_F(Remembered, ManyClientsAtATime) {
  std::atomic<int> bad{0};
  std::vector<std::thread> all;
  for (std::uint64_t t = 0; t < 4; ++t)
    all.emplace_back([&, t] {
      for (std::uint64_t i = 1; i <= 3000; ++i) {
        const put_options once{.level = i % 50 == 0 ? durability::logged : durability::volatile_, .request = {4 * i + t, 1}};
        const std::string key = "k" + std::to_string((i * 5 + t) % 40);
        const auto first = store_->put(pool_, key, as_bytes("a value"), once);
        const auto again = store_->put(pool_, key, as_bytes("another"), once);
        bad += first && !first->repeated && again && again->repeated && again->version == first->version ? 0 : 1;
      }
    });
  std::atomic<bool> is_over{false};
  std::thread reader([&] {
    while (!is_over) (void)store_->stats().remembered_items;
  });
  for (std::thread& one : all) one.join();
  is_over = true;
  reader.join();
  EXPECT_EQ(bad, 0);
  EXPECT_LE(store_->stats().remembered_items, 4096u);  // one a client
}

TEST_F(Remembered, BatchesOfManyClientsHaveALimitTogether) {
  for (std::uint64_t client = 1; client <= 12; ++client)
    for (std::uint64_t i = 1; i <= 20; ++i) ASSERT_EQ(batch(client * 16, i), 0);  // all in one group
  EXPECT_LE(store_->stats().remembered_items, std::uint64_t{256} << 10);
  EXPECT_EQ(batch(12 * 16, 20), -1);
  EXPECT_EQ(batch(11 * 16, 1), -1);
}

}  // namespace
}  // namespace pl::store
