// SPDX-License-Identifier: Apache-2.0
// Quotas of principals for values that the server fetches from device memory itself: one by one, and many by one call.
#include <unistd.h>

#include <deque>

#include "test/store/server/gpu_direct_rig.hpp"

namespace pl::store_test {
namespace {

class store_gpu_direct_quota : public store_gpu_direct {
 protected:
  void SetUp() override {
    rig_.config.quotas = {"*"};
    start_and_open();
  }
  void limit(std::uint64_t bytes, std::uint64_t keys) { rig_.server().engine().set_quotas({{me_, bytes, keys}}); }
  std::pair<std::uint64_t, std::uint64_t> held() {
    for (const auto& one : rig_.server().engine().list_owners())
      if (one.name == me_) return {one.keys, one.bytes};
    return {};
  }
  // The memory in equal parts, by the keys k0, k1, ..., which `keys` keeps.
  std::vector<store_client::batch_entry> entries_of(std::deque<std::string>& keys, const test::device_buffer& memory,
                                                    std::size_t count) {
    const std::size_t part_bytes = memory.bytes() / count;
    std::vector<store_client::batch_entry> entries(count);
    for (std::size_t i = 0; i < count; ++i) {
      entries[i].key = keys.emplace_back("k" + std::to_string(i));
      entries[i].buffer = device(memory.pointer() + i * part_bytes, part_bytes);
    }
    return entries;
  }
  const std::string me_ = "uid:" + std::to_string(geteuid());
};

using held_t = std::pair<std::uint64_t, std::uint64_t>;

TEST_F(store_gpu_direct_quota, PutsCountAndAreRefused) {
  constexpr std::size_t kBytes = 1u << 20;
  const test::device_buffer source(kBytes);
  limit(2 * kBytes, 0);
  for (const auto level : {durability::durable, durability::volatile_}) {
    for (const char* key : {"1", "2", "2"}) {
      const auto done = put_device(key, source.pointer(), kBytes, at_level(level));
      ASSERT_EQ(done.status, 0) << done.text;
      ASSERT_EQ(done.result.way, path::gpu_direct);
    }
    EXPECT_EQ(held(), held_t(2, 2 * kBytes));
    const auto refused = put_device("3", source.pointer(), kBytes, at_level(level));
    EXPECT_EQ(refused.status, EDQUOT) << refused.text;
    EXPECT_NE(refused.text.find(me_), std::string::npos) << refused.text;
    EXPECT_EQ(held(), held_t(2, 2 * kBytes));
    EXPECT_EQ(rig_.server().engine().stats().grants, 0u);
  }
}

TEST_F(store_gpu_direct_quota, ALimitInTheMiddleOfABatch) {
  constexpr std::size_t kBytes = 16'384, kCount = 100;
  const test::device_buffer source(kCount * kBytes);
  std::deque<std::string> keys;
  auto entries = entries_of(keys, source, kCount);
  for (auto& one : entries) one.level = durability::volatile_;
  for (const held_t& most : {held_t(60, 0), held_t(0, 70 * kBytes)}) {
    limit(most.second, most.first);
    const std::size_t fits = most.first != 0 ? most.first : most.second / kBytes;
    std::size_t done = 0, refused = 0;
    for (const auto& one : store_->run_batch(opcode::batch_put, pool_, entries)) {
      done += one.status == 0 && one.result.way == path::gpu_direct;
      refused += one.status == EDQUOT;
    }
    EXPECT_EQ(done, fits);
    EXPECT_EQ(refused, kCount - fits);
    EXPECT_EQ(held(), held_t(fits, fits * kBytes));
  }
}

// Values leave in every way; what they counted leaves with them.
TEST_F(store_gpu_direct_quota, NothingIsCountedOnceAllIsGone) {
  constexpr std::size_t kBytes = 64 << 10, kCount = 20;
  const test::device_buffer source(kCount * kBytes);
  std::deque<std::string> keys;
  auto entries = entries_of(keys, source, kCount);
  const auto fill = [&](durability level) {
    for (auto& one : entries) one.level = level;
    for (const auto& one : store_->run_batch(opcode::batch_put, pool_, entries)) ASSERT_EQ(one.status, 0) << one.text;
    ASSERT_EQ(held(), held_t(kCount, kCount * kBytes));
  };
  for (const auto level : {durability::durable, durability::volatile_}) {
    fill(level);
    for (const auto& one : store_->run_batch(opcode::batch_erase, pool_, entries)) ASSERT_EQ(one.status, 0) << one.text;
    EXPECT_EQ(held(), held_t(0, 0)) << "erased together";
    fill(level);
    // Shorter and longer ones in their place, of GPU memory and of host memory, at another durability too.
    ASSERT_EQ(put_device("k0", source.pointer(), 2 * kBytes, at_level(level)).status, 0);
    ASSERT_EQ(put_device("k1", source.pointer(), kBytes / 2, at_level(durability::logged)).status, 0);
    ASSERT_EQ(put(*store_, pool_, "k2", random_value(100, 1), at_level(level)).status, 0);
    EXPECT_EQ(held(), held_t(kCount, (kCount - 3) * kBytes + 2 * kBytes + kBytes / 2 + 100));
    ASSERT_EQ(store_->erase_prefix(pool_, "k", -1, std::chrono::seconds(5)).status, 0);
    EXPECT_EQ(held(), held_t(0, 0)) << "erased by prefix";
  }
  fill(durability::durable);
  store_.reset();
  rig_.stop();
  rig_.start();
  open();
  EXPECT_EQ(held(), held_t(kCount, kCount * kBytes)) << "after a restart";
  for (auto& one : entries) one.buffer = device(source.pointer(), kBytes);
  for (const auto& one : store_->run_batch(opcode::batch_get, pool_, entries)) ASSERT_EQ(one.status, 0) << one.text;
  EXPECT_EQ(held(), held_t(kCount, kCount * kBytes)) << "back in memory";
  for (const auto& key : keys) ASSERT_EQ(store_->run(store_->make_erase(pool_, key, {})).status, 0);
  EXPECT_EQ(held(), held_t(0, 0));
  EXPECT_EQ(rig_.server().engine().stats().grants, 0u);
}

// Whichever put comes last, none counts for a pool that is gone, nor for one of the same name that comes later.
TEST_F(store_gpu_direct_quota, APoolIsDeletedWhilePutsAreRunning) {
  constexpr std::size_t kBytes = 16 << 10, kCount = 64;
  const test::device_buffer source(kCount * kBytes);
  std::deque<std::string> keys;
  auto entries = entries_of(keys, source, kCount);
  const auto other = store_rig::open(options());
  for (int round = 0; round < 30; ++round) {
    const auto level = round % 2 == 0 ? durability::durable : durability::volatile_;
    for (auto& one : entries) one.level = level;
    const std::string name = "q" + std::to_string(round % 3);
    const auto pool = make_pool(*store_, name);
    std::thread deleter([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(round * 200));
      int outcome = EBUSY;  // while values are on their way
      while (outcome == EBUSY) outcome = other->run(other->make_plain(opcode::pool_delete, 0, name)).status;
      EXPECT_EQ(outcome, 0);
    });
    std::vector<store_client::operation_ptr> begun;
    for (const auto& one : entries)
      begun.push_back(store_->make_put(pool, std::string(one.key) + "-alone", one.buffer, at_level(level)));
    store_->start(begun);
    for (const auto& one : store_->run_batch(opcode::batch_put, pool, entries))
      EXPECT_TRUE(one.status == 0 || one.status == ENXIO) << one.status << one.text;
    for (const auto& one : begun) {
      store_->wait(one);
      EXPECT_TRUE(one->got.status == 0 || one->got.status == ENXIO) << one->got.status << one->got.text;
    }
    deleter.join();
    EXPECT_EQ(held(), held_t(0, 0)) << "round " << round;
    EXPECT_EQ(rig_.server().engine().stats().grants, 0u);
  }
  store_.reset();
  rig_.stop();
  rig_.start();
  EXPECT_EQ(held(), held_t(0, 0)) << "after a restart";
}

// A cache counts for nobody, whatever becomes of its values, and its pool ends empty.
TEST_F(store_gpu_direct_quota, ValuesThatExpireOrAreEvictedLeaveNothing) {
  constexpr std::size_t kBytes = 1 << 20;
  const test::device_buffer source(kBytes);
  store_protocol::cache_settings terms;
  terms.memory_bytes = 16 << 20, terms.disk_bytes = 32 << 20;
  const auto made = store_->create_pool("cache", {}, terms);
  ASSERT_TRUE(made) << made.error().message;
  const auto in_pool = [&] {
    for (const auto& pool : rig_.server().engine().list_pools())
      if (pool.name == "cache") return held_t(pool.keys, pool.bytes);
    return held_t(~0ull, 0);
  };
  store_client::put_request briefly;
  briefly.ttl_ms = 300;
  for (int i = 0; i < 100; ++i) {
    const auto done =
        store_->run(store_->make_put(*made, "k" + std::to_string(i), device(source.pointer(), kBytes), briefly));
    ASSERT_EQ(done.status, 0) << done.text;
    ASSERT_EQ(done.result.way, path::gpu_direct);
  }
  EXPECT_EQ(held(), held_t(0, 0));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (in_pool() != held_t(0, 0) && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(in_pool(), held_t(0, 0));
  EXPECT_EQ(held(), held_t(0, 0));
}

}  // namespace
}  // namespace pl::store_test
