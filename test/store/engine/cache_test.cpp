// SPDX-License-Identifier: Apache-2.0
// Pools that are caches: which values are evicted and which stay, and that caches never cause other puts to be refused.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "base/clock.hpp"
#include "store/engine/engine.hpp"
#include "store/engine/eviction.hpp"
#include "test/store/engine/store_fixture.hpp"

namespace pl::store {
namespace {

class Cache : public StoreTest {
 protected:
  engine_options options() override {
    auto made = StoreTest::options();
    made.cache_of = [this](const pool_info& pool) -> std::optional<cache_terms> {
      const auto found = terms_.find(pool.name);
      return found == terms_.end() ? std::nullopt : std::optional(found->second);
    };
    return made;
  }
  pool_id make_cache(const std::string& name, const cache_terms& terms) {
    terms_[name] = terms;
    return make_pool(name, durability::volatile_);
  }
  pool_info info(pool_id pool) { return *store_->pool(pool); }
  // By several keys "0", "1", ... of one pool.
  void fill(pool_id pool, int first, int end, std::size_t size) {
    for (int i = first; i < end; ++i) {
      const auto done = store_->put(pool, std::to_string(i), pattern_bytes(size, static_cast<std::uint64_t>(i)));
      ASSERT_TRUE(done) << i << ": " << done.error().message;
    }
  }
  // How many of the keys are there; each that is has its own bytes.
  int present(pool_id pool, int end, std::size_t size) {
    int found = 0;
    for (int i = 0; i < end; ++i) {
      const std::string got = read(*store_, pool, std::to_string(i));
      if (got == "errno 2") continue;
      EXPECT_EQ(got, text(pattern_bytes(size, static_cast<std::uint64_t>(i)))) << i;
      ++found;
    }
    return found;
  }
  static constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

  std::map<std::string, cache_terms> terms_;
};

TEST_F(Cache, HoldsItsShareAndNoMore) {
  for (const eviction policy : {eviction::s3_fifo, eviction::lru}) {
    for (const std::size_t size : {std::size_t{100}, std::size_t{2000}, kLarge}) {
      const std::string name = std::string(name_of(policy)) + std::to_string(size);
      const pool_id pool = make_cache(name, {.policy = policy, .memory_bytes = 2 * kMiB});
      const int count = static_cast<int>(4 * kMiB / size);
      fill(pool, 0, count, size);
      const pool_info now = info(pool);
      EXPECT_LE(now.counts.memory_bytes, 2 * kMiB) << name;
      EXPECT_GE(now.counts.memory_bytes, 3 * kMiB / 2) << name;
      EXPECT_GT(now.counts.evicted, 0u) << name;
      EXPECT_EQ(now.keys + now.counts.evicted, static_cast<std::uint64_t>(count)) << name;
      EXPECT_EQ(static_cast<std::uint64_t>(present(pool, count, size)), now.keys) << name;
      const auto page = store_->find(pool, {});
      ASSERT_TRUE(page);
      EXPECT_EQ(page->keys.size(), std::min<std::uint64_t>(now.keys, 1000)) << name;
      ASSERT_TRUE(store_->delete_pool(pool));
    }
  }
  EXPECT_EQ(store_->stats().arena_used_bytes, 0u);
}

// What is used stays, whatever passes once.
TEST_F(Cache, UsedValuesOutliveAScan) {
  const pool_id pool = make_cache("cache", {.memory_bytes = 2 * kMiB});
  fill(pool, 0, 50, 10'000);
  for (int round = 0; round < 3; ++round) EXPECT_EQ(present(pool, 50, 10'000), 50);
  fill(pool, 1000, 2000, 10'000);
  EXPECT_EQ(present(pool, 50, 10'000), 50);
}

TEST_F(Cache, AStoreFullOfCacheStillAcceptsPuts) {
  const pool_id cache = make_cache("cache", {.memory_bytes = 16 * kMiB});
  const pool_id other = make_pool("volatile", durability::volatile_);
  fill(cache, 0, 4000, 2000);
  fill(cache, 4000, 4200, kLarge);
  for (int i = 0; i < 100; ++i) {
    const std::string key = std::to_string(i);
    ASSERT_EQ(put(key, text(pattern_bytes(kLarge, static_cast<std::uint64_t>(i)))), 0) << i;
    ASSERT_EQ(put("small" + key, text(pattern_bytes(kSmall, static_cast<std::uint64_t>(i)))), 0) << i;
    ASSERT_TRUE(store_->put(other, key, pattern_bytes(50'000, 1))) << i;
    fill(cache, 5000 + i, 5001 + i, kLarge);
  }
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(read(std::to_string(i)), text(pattern_bytes(kLarge, static_cast<std::uint64_t>(i))));
    EXPECT_EQ(read(*store_, other, std::to_string(i)), text(pattern_bytes(50'000, 1)));
  }
  EXPECT_GT(info(cache).counts.evicted, 0u);
  expect_sound();
}

TEST_F(Cache, PinnedValuesStayAndSoDoTheirKeys) {
  const pool_id pool = make_cache("cache", {.policy = eviction::lru, .memory_bytes = 2 * kMiB});
  const session_id session = store_->open_session();
  fill(pool, 0, 10, kLarge);
  std::vector<pinned_value> pins;
  for (int i = 0; i < 10; ++i) {
    auto pinned = store_->lookup(session, pool, std::to_string(i));
    ASSERT_TRUE(pinned) << pinned.error().message;
    pins.push_back(*pinned);
  }
  fill(pool, 100, 300, kLarge);
  for (int i = 0; i < 10; ++i) {
    const bytes expected = pattern_bytes(kLarge, static_cast<std::uint64_t>(i));
    std::size_t offset = 0;
    for (const segment& piece : pins[static_cast<std::size_t>(i)].segments) {
      EXPECT_EQ(std::memcmp(store_->arena().base + piece.offset_bytes, expected.data() + offset, piece.size_bytes), 0) << i;
      offset += piece.size_bytes;
    }
    EXPECT_EQ(read(*store_, pool, std::to_string(i)), text(expected)) << i;
  }
  store_->close_session(session);
  fill(pool, 300, 500, kLarge);
  EXPECT_LE(info(pool).counts.memory_bytes, 2 * kMiB);
  EXPECT_LT(present(pool, 10, kLarge), 10);
}

TEST_F(Cache, ValuesExpire) {
  const pool_id pool = make_cache("cache", {.ttl_ms = 3'600'000});
  ASSERT_TRUE(store_->put(pool, "long", as_bytes("stays")));
  ASSERT_TRUE(store_->put(pool, "short", as_bytes("goes"), {.ttl_ms = 20}));
  ASSERT_TRUE(store_->put(pool, "short too", as_bytes("goes"), {.ttl_ms = 20}));
  const std::uint64_t begin = monotonic_ns();
  while (read(*store_, pool, "short") != "errno 2" && monotonic_ns() - begin < 10'000'000'000) std::this_thread::yield();
  EXPECT_EQ(read(*store_, pool, "short"), "errno 2");
  EXPECT_GE(monotonic_ns() - begin, 10'000'000u);
  EXPECT_EQ(read(*store_, pool, "long"), "stays");
  // To conditions it is as absent as to readers.
  EXPECT_EQ(store_->put(pool, "short", as_bytes("x"), {.precondition = condition::if_present}).code(), ENOENT);
  EXPECT_EQ(store_->erase(pool, "short too").code(), ENOENT);
  EXPECT_EQ(store_->put(pool, "short", as_bytes("again"), {.precondition = condition::if_absent}).code(), 0);
  EXPECT_EQ(read(*store_, pool, "short"), "again");
  const pool_info now = store_->list_pools().front();
  EXPECT_EQ(now.name, "cache");
  EXPECT_EQ(now.keys, 2u);
  EXPECT_EQ(now.bytes, 10u);
  EXPECT_EQ(now.counts.expired, 2u);
}

// The batch goes through the committer, which must see the time as the other path does.
TEST_F(Cache, ABatchMeetsNoExpiredValue) {
  const pool_id pool = make_cache("cache", {});
  ASSERT_TRUE(store_->put(pool, "a", as_bytes("old"), {.ttl_ms = 5}));
  const std::uint64_t begin = monotonic_ns();
  while (read(*store_, pool, "a") != "errno 2" && monotonic_ns() - begin < 10'000'000'000) std::this_thread::yield();
  const std::vector<batch_operation> list = {
      {batch_operation::kind::put, "a", as_bytes("new"), condition::if_absent, 0, 0, 0},
      {batch_operation::kind::put, "b", as_bytes("value"), condition::none, 0, 0, 0}};
  const auto done = store_->batch(pool, list);
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(done->items[0].error, 0) << done->items[0].message;
  EXPECT_EQ(read(*store_, pool, "a"), "new");
  EXPECT_EQ(info(pool).keys, 2u);
  EXPECT_EQ(info(pool).bytes, 8u);
}

TEST_F(Cache, WhatLeavesMemoryComesBackFromDisk) {
  const pool_id pool = make_cache("cache", {.memory_bytes = 2 * kMiB, .disk_bytes = 64 * kMiB});
  fill(pool, 0, 100, kLarge);
  fill(pool, 100, 200, 1500);
  EXPECT_GT(info(pool).counts.spilled, 0u);
  EXPECT_GT(info(pool).counts.disk_bytes, 0u);
  EXPECT_LE(info(pool).counts.memory_bytes, 2 * kMiB);
  EXPECT_EQ(info(pool).counts.evicted, 0u);
  EXPECT_EQ(present(pool, 100, kLarge), 100);
  EXPECT_LE(info(pool).counts.memory_bytes, 2 * kMiB + 110'000);  // the last reader's value comes on top
  ASSERT_TRUE(store_->delete_pool(pool));
  EXPECT_EQ(store_->stats().disk_used_bytes, 0u);
}

TEST_F(Cache, TheDiskShareHoldsToo) {
  const pool_id pool = make_cache("cache", {.memory_bytes = kMiB, .disk_bytes = 2 * kMiB});
  fill(pool, 0, 100, kLarge);
  EXPECT_LE(info(pool).counts.disk_bytes, 2 * kMiB);
  EXPECT_GT(info(pool).counts.disk_bytes, kMiB);
  EXPECT_GT(info(pool).counts.evicted, 0u);
  const std::uint64_t before = info(pool).keys;  // reading brings values to memory, and others go
  const int found = present(pool, 100, kLarge);
  EXPECT_LE(static_cast<std::uint64_t>(found), before);
  EXPECT_GE(static_cast<std::uint64_t>(found), info(pool).keys / 2);
}

class CacheOnAFullDisk : public Cache {
 protected:
  engine_options options() override {
    auto made = Cache::options();
    made.disk_limit_bytes = 16 * kMiB;
    return made;
  }
  void fill_the_disk() {
    cache_ = make_cache("cache", {.memory_bytes = kMiB, .disk_bytes = 64 * kMiB});
    fill(cache_, 0, 300, kLarge);
    ASSERT_GT(info(cache_).counts.disk_bytes, 14 * kMiB);
  }
  pool_id cache_ = 0;
};

TEST_F(CacheOnAFullDisk, GivesItsShareToDurableValues) {
  fill_the_disk();
  fill(pool_, 0, 120, kLarge);
  EXPECT_EQ(present(pool_, 120, kLarge), 120);
  EXPECT_LT(info(cache_).counts.disk_bytes, 5 * kMiB);
  // What is not the cache's stays, and a disk that is full of that is full.
  int code = 0;
  for (int i = 120; code == 0 && i < 400; ++i) code = store_->put(pool_, std::to_string(i), pattern_bytes(kLarge, 1)).code();
  EXPECT_EQ(code, ENOSPC);
  EXPECT_EQ(present(pool_, 120, kLarge), 120);
}

TEST_F(CacheOnAFullDisk, GivesItsShareToValuesLongerThanMemory) {
  fill_the_disk();
  const bytes whole = pattern_bytes(9 * kMiB, 5);
  const auto done = store_->put(pool_, "long", whole);
  ASSERT_TRUE(done) << done.error().message;
  bytes got(whole.size());
  ASSERT_TRUE(store_->get(pool_, "long", got));
  EXPECT_EQ(got, whole);
}

TEST_F(CacheOnAFullDisk, GivesItsShareToVolatileValuesThatLeaveMemory) {
  fill_the_disk();
  const pool_id other = make_pool("volatile", durability::volatile_);
  fill(other, 0, 220, kLarge);  // 22 MB, of which memory has 16
  EXPECT_EQ(present(other, 220, kLarge), 220);
}

TEST_F(Cache, KeepsItsQuotasByEvicting) {
  terms_["cache"] = {.memory_bytes = 4 * kMiB};
  pool_options settings;
  settings.level = durability::volatile_, settings.quota_bytes = 10'000, settings.quota_keys = 5;
  const auto made = store_->create_pool("cache", settings);
  ASSERT_TRUE(made);
  fill(made->id, 0, 100, 1000);
  EXPECT_LE(info(made->id).keys, 5u);
  fill(made->id, 100, 104, 4000);
  EXPECT_LE(info(made->id).bytes, 10'000u);
}

TEST_F(Cache, RefusesWhatNoCacheCanKeep) {
  const pool_id pool = make_cache("cache", {.memory_bytes = 2 * kMiB});
  EXPECT_EQ(store_->put(pool, "k", as_bytes("v"), {.level = durability::durable}).code(), EINVAL);
  EXPECT_EQ(store_->put(pool, "k", pattern_bytes(3 * kMiB, 1)).code(), EFBIG);
  EXPECT_EQ(store_->put(pool_, "k", as_bytes("v"), {.ttl_ms = 1}).code(), EINVAL);
  EXPECT_EQ(store_->put(pool, "k", as_bytes("v"), {.ttl_ms = kMaxTtlMs + 1}).code(), EINVAL);
  terms_["durable"] = {};
  pool_options settings;
  EXPECT_EQ(store_->create_pool("durable", settings).code(), EINVAL);
  // A pool of values does not become a cache, nor a cache a pool.
  terms_["pool"] = {};
  settings.level = durability::volatile_;
  EXPECT_EQ(store_->configure_pool(pool_, settings).code(), ENOTSUP);
  terms_.erase("cache");
  EXPECT_EQ(store_->configure_pool(pool, settings).code(), ENOTSUP);
}

TEST_F(Cache, ASmallerShareTakesEffectAtOnce) {
  const pool_id pool = make_cache("cache", {.memory_bytes = 4 * kMiB});
  fill(pool, 0, 35, kLarge);
  terms_["cache"].memory_bytes = kMiB;
  pool_options settings;
  settings.level = durability::volatile_;
  ASSERT_TRUE(store_->configure_pool(pool, settings));
  EXPECT_LE(info(pool).counts.memory_bytes, kMiB);
  EXPECT_EQ(static_cast<std::uint64_t>(present(pool, 35, kLarge)), info(pool).keys);
}

TEST_F(Cache, CountsHitsAndMisses) {
  const pool_id pool = make_cache("cache", {});
  fill(pool, 0, 1, 10);
  char room[16];
  const auto out = std::as_writable_bytes(std::span(room));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(store_->get(pool, "0", out));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(store_->get(pool, "none", out).code(), ENOENT);
  const session_id session = store_->open_session();
  EXPECT_TRUE(store_->lookup(session, pool, "0"));
  EXPECT_EQ(store_->lookup(session, pool, "none").code(), ENOENT);
  EXPECT_EQ(info(pool).counts.hits, 4u);
  EXPECT_EQ(info(pool).counts.misses, 3u);
  store_->close_session(session);
}

// Threads that put, get, erase and pin while the shares are far too small: what is read is whole, and the books agree.
TEST_F(Cache, HoldsUnderConcurrency) {
  const pool_id plain = make_cache("plain", {.memory_bytes = kMiB});
  const pool_id spilling =
      make_cache("spilling", {.policy = eviction::lru, .memory_bytes = kMiB, .disk_bytes = 2 * kMiB, .ttl_ms = 50});
  std::atomic<int> bad{0};
  std::mutex guard;
  std::string last;  // what went wrong
  const auto fail = [&](const std::string& reason) {
    const std::lock_guard lock(guard);
    ++bad, last = reason;
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      const session_id session = store_->open_session();
      std::vector<std::byte> room(kLarge);
      for (int i = 0; i < 1500; ++i) {
        const pool_id pool = random() % 2 ? plain : spilling;
        const auto number = static_cast<unsigned>(random() % 200);
        const std::string key = std::to_string(number);
        const std::size_t size = number % 3 == 0 ? 100 : number % 3 == 1 ? 5000 : 40'000;
        switch (random() % 8) {
          case 0:
          case 1:
          case 2: {
            put_options settings;
            settings.deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
            const auto done = store_->put(pool, key, pattern_bytes(size, number), settings);
            if (!done) fail(done.error().message);
            break;
          }
          case 3:
            (void)store_->erase(pool, key).ok();
            break;
          case 4: {
            const auto pinned = store_->lookup(session, pool, key);
            if (pinned && !store_->unpin(session, pinned->pin)) fail("unpin");
            break;
          }
          default: {
            const auto got = store_->get(pool, key, room);
            if (!got && got.code() != ENOENT) fail(got.error().message);
            if (got &&
                (got->copied_bytes != size || std::memcmp(room.data(), pattern_bytes(size, number).data(), size) != 0))
              fail("other bytes");
          }
        }
      }
      store_->close_session(session);
    });
  for (std::thread& one : threads) one.join();
  EXPECT_EQ(bad, 0) << last;
  for (const pool_id pool : {plain, spilling}) {
    std::uint64_t keys = 0, bytes = 0;
    for (int i = 0; i < 200; ++i) {
      const auto one = store_->stat(pool, std::to_string(i));
      if (one) ++keys, bytes += one->length_bytes;
    }
    if (pool == spilling) continue;  // some of its values expire while they are counted
    EXPECT_EQ(info(pool).keys, keys);
    EXPECT_EQ(info(pool).bytes, bytes);
  }
  ASSERT_TRUE(store_->delete_pool(plain));
  ASSERT_TRUE(store_->delete_pool(spilling));
  EXPECT_EQ(store_->stats().arena_used_bytes, 0u);
  EXPECT_EQ(store_->stats().disk_used_bytes, 0u);
}

// Gone with the process, whatever had been spilled; the pool and its terms stay.
TEST_F(Cache, IsEmptyAfterARestart) {
  const pool_id pool = make_cache("cache", {.memory_bytes = kMiB, .disk_bytes = 4 * kMiB});
  fill(pool, 0, 40, kLarge);
  reopen();
  EXPECT_EQ(info(pool).keys, 0u);
  EXPECT_TRUE(info(pool).cache.has_value());
  EXPECT_EQ(present(pool, 40, kLarge), 0);
  EXPECT_EQ(store_->stats().disk_used_bytes, 0u);
}

}  // namespace
}  // namespace pl::store
