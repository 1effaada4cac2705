// SPDX-License-Identifier: Apache-2.0
// Batches of a router: the keys of many servers by one call, where one of them is gone, and while servers come and go.
#include <atomic>
#include <chrono>
#include <thread>

#include "store/client/router_tries.hpp"
#include "test/store/cluster/cluster_rig.hpp"

namespace pl::store_test {
namespace {

using store_client::batch_entry;
using store_client::reply;
using store_client::router;
using store_protocol::condition;
using store_protocol::opcode;

class cluster_batches : public testing::Test {
 protected:
  void SetUp() override {
    if (!etcd_is_there()) GTEST_SKIP() << kNoEtcd;
  }
  // Also empty ones, and some that no frame takes.
  void make_values(std::size_t count, const std::string& prefix = "key") {
    keys_.clear(), values_.clear();
    for (std::size_t i = 0; i < count; ++i) {
      keys_.push_back(prefix + std::to_string(i));
      values_.push_back(random_value(i % 97 == 96 ? 200'000 : i % 11 == 0 ? 0 : i * 37 % 3000, i + 1));
    }
  }
  static std::vector<batch_entry> entries(const std::vector<std::string>& keys, const std::vector<bytes_t>& memories) {
    std::vector<batch_entry> out(keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      out[i].key = keys[i];
      out[i].buffer = memory_of(memories[i]);
    }
    return out;
  }
  std::vector<bytes_t> rooms() const {
    std::vector<bytes_t> out;
    for (const bytes_t& one : values_) out.emplace_back(one.size());
    return out;
  }
  std::vector<std::string> keys_;
  std::vector<bytes_t> values_;
};

TEST_F(cluster_batches, EveryServerHasItsPart) {
  cluster_rig rig;
  for (const char* name : {"a", "b", "c"}) rig.start(name);
  ASSERT_TRUE(rig.settled({"a", "b", "c"}));
  const auto all = rig.open();
  for (const unsigned copies : {1u, 2u}) {
    const auto pool = rig.make_pool(*all, "p" + std::to_string(copies), copies);
    make_values(1200);
    const auto done = all->run_batch(opcode::batch_put, pool, entries(keys_, values_));
    for (std::size_t i = 0; i < done.size(); ++i) {
      ASSERT_EQ(done[i].status, 0) << i << ": " << done[i].text;
      EXPECT_EQ(done[i].moved_bytes, values_[i].size());
    }
    for (const char* name : {"a", "b", "c"}) EXPECT_GT(rig.server(name).server().engine().stats().puts, 200u) << name;
    auto names = keys_;
    for (std::size_t i = 5; i < names.size(); i += 10) names[i] = "none" + std::to_string(i);
    const auto wanted = rooms();
    const auto got = all->run_batch(opcode::batch_get, pool, entries(names, wanted));
    const auto known = all->run_batch(opcode::batch_exists, pool, entries(names, wanted));
    for (std::size_t i = 0; i < got.size(); ++i) {
      const bool is_there = i % 10 != 5;
      ASSERT_EQ(got[i].status, is_there ? 0 : ENOENT) << i << ": " << got[i].text;
      EXPECT_EQ(known[i].status, got[i].status) << i;
      if (!is_there) continue;
      EXPECT_EQ(wanted[i], values_[i]) << i;
      EXPECT_EQ(got[i].result.version, done[i].result.version);
      EXPECT_EQ(known[i].result.version, done[i].result.version);
    }
    auto again = entries(keys_, values_);
    for (auto& one : again) one.only = {condition::if_absent, 0};
    for (const reply& one : all->run_batch(opcode::batch_put, pool, again)) EXPECT_EQ(one.status, EEXIST) << one.text;
    const auto erased = all->run_batch(opcode::batch_erase, pool, entries(names, wanted));
    for (std::size_t i = 0; i < erased.size(); ++i) EXPECT_EQ(erased[i].status, i % 10 != 5 ? 0 : ENOENT) << i;
  }
  EXPECT_TRUE(all->run_batch(opcode::batch_get, 1, {}).empty());
  EXPECT_EQ(all->run_batch(opcode::batch_get, 4711, entries({"k"}, {bytes_t(1)}))[0].status, ENXIO);
}

// What only a server has that is gone is refused at the call's end, and says so; the others' is there at once.
TEST_F(cluster_batches, ADeadServersKeysFailAlone) {
  cluster_rig rig;
  for (const char* name : {"a", "b", "c"}) rig.start(name);
  ASSERT_TRUE(rig.settled({"a", "b", "c"}));
  const auto all = rig.open();
  const auto pool = rig.make_pool(*all, "p", 1);
  make_values(900);
  for (const reply& one : all->run_batch(opcode::batch_put, pool, entries(keys_, values_)))
    ASSERT_EQ(one.status, 0) << one.text;
  std::set<std::size_t> lost;
  const auto map = all->map();
  for (std::size_t i = 0; i < keys_.size(); ++i)
    if (map.units[store_client::unit_of(1, keys_[i])].copies.front() == "c") lost.insert(i);
  ASSERT_GT(lost.size(), 100u);
  rig.stop("c");
  for (const opcode op : {opcode::batch_get, opcode::batch_put, opcode::batch_exists}) {
    const auto memories = op == opcode::batch_put ? values_ : rooms();
    const auto got = all->run_batch(op, pool, entries(keys_, memories), 1500);
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (lost.contains(i)) {
        EXPECT_TRUE(store_client::may_pass(got[i].status)) << i << ": " << got[i].status << " " << got[i].text;
        EXPECT_NE(got[i].text, "");
        continue;
      }
      ASSERT_EQ(got[i].status, 0) << i << ": " << got[i].text;
      EXPECT_EQ(memories[i].size(), values_[i].size());
      if (op == opcode::batch_get) { EXPECT_EQ(memories[i], values_[i]) << i; }
    }
  }
  rig.start("c");
  const auto back = rooms();
  const auto got = all->run_batch(opcode::batch_get, pool, entries(keys_, back));
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].status, 0) << i << ": " << got[i].text;
    EXPECT_EQ(back[i], values_[i]) << i;
  }
}

// Each put is applied once, though servers go in the middle of it: EEXIST would be one that came again as another request.
TEST_F(cluster_batches, AreAppliedOnceWhileServersComeAndGo) {
  cluster_rig rig;
  for (const char* name : {"a", "b", "c"}) rig.start(name);
  ASSERT_TRUE(rig.settled({"a", "b", "c"}));
  const auto first = rig.open(60'000);
  const auto pool = rig.make_pool(*first, "p", 2);
  std::atomic<bool> stop{false};
  std::atomic<int> rounds{0};
  std::string problem;
  std::thread writer([&] {
    for (int round = 0; !stop && problem.empty(); ++round) {
      make_values(700, std::to_string(round) + "/");
      auto list = entries(keys_, values_);
      for (auto& one : list) one.only = {condition::if_absent, 0};
      for (const reply& one : first->run_batch(opcode::batch_put, pool, list))
        if (one.status != 0) problem = "put: " + std::to_string(one.status) + " " + one.text;
      const auto wanted = rooms();
      for (const reply& one : first->run_batch(opcode::batch_get, pool, entries(keys_, wanted)))
        if (one.status != 0) problem = "get: " + std::to_string(one.status) + " " + one.text;
      if (wanted != values_) problem = "a value has other bytes";
      rounds = round + 1;
    }
  });
  for (const char* name : {"a", "c"}) {
    const int before = rounds;
    rig.stop(name);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (rounds < before + 2 && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    rig.start(name);
    EXPECT_TRUE(rig.settled({"a", "b", "c"}));
  }
  stop = true;
  writer.join();
  EXPECT_EQ(problem, "");
  EXPECT_GT(rounds, 3);
}

}  // namespace
}  // namespace pl::store_test
