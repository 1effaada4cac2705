// SPDX-License-Identifier: Apache-2.0
// Batches of values in host memory that the server puts by runs of its engine: each item ends as a put of its own would
// have, in the order of the items, whatever stands in the way.
#include <algorithm>
#include <random>

#include "arch/crc32c.hpp"
#include "store/protocol/batch.hpp"
#include "test/store/server/raw_peer.hpp"
#include "test/store/server/store_rig.hpp"

namespace pl::store_test {
namespace {

using store_client::batch_entry;
using store_client::reply;
using store_protocol::condition;
using store_protocol::durability;
using store_protocol::opcode;

struct item {
  std::string key;
  bytes_t value;
  store_protocol::precondition only;
  std::uint32_t user_flags = 0;
};

std::vector<batch_entry> entries_of(std::vector<item>&& gone_too_soon) = delete;
std::vector<batch_entry> entries_of(const std::vector<item>& items) {
  std::vector<batch_entry> out(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    out[i].key = items[i].key;
    out[i].buffer = memory_of(items[i].value);
    if (items[i].only.kind != condition::none) out[i].only = items[i].only;
    out[i].user_flags = items[i].user_flags;
  }
  return out;
}

std::vector<reply> put_singly(store_client::client& store, std::uint32_t pool, const std::vector<item>& items) {
  std::vector<reply> out;
  for (const item& one : items) {
    store_client::put_request options;
    if (one.only.kind != condition::none) options.only = one.only;
    options.user_flags = one.user_flags;
    out.push_back(put(store, pool, one.key, one.value, options));
  }
  return out;
}

class BatchRuns : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    rig_.config.arena_bytes = 32u << 20;
    rig_.config.chunk_bytes = 16u << 20;
    rig_.config.quotas = {"*"};
    rig_.start();
    auto options = std::string_view(GetParam()) == "tcp" ? rig_.over_tcp() : rig_.over_unix();
    options.use_shm = std::string_view(GetParam()) == "rings";
    store_ = store_rig::open(options);
    ASSERT_NE(store_, nullptr);
  }
  std::uint32_t pool(const std::string& name, store_protocol::pool_settings settings = {}) {
    settings.level = durability::volatile_;
    return make_pool(*store_, name, settings);
  }
  std::string principal() const {
    return std::string_view(GetParam()) == "tcp" ? "tcp" : "uid:" + std::to_string(geteuid());
  }
  store::engine& engine() { return rig_.server().engine(); }
  store_rig rig_;
  std::unique_ptr<store_client::client> store_;
};

// Keys that repeat, conditions, lengths of every kind, and quotas of the pool and of the principal that end in the middle.
TEST_P(BatchRuns, EndAsPutsInTheirOrderWould) {
  std::mt19937 random(20261128);
  int refused = 0;  // for a quota
  for (int round = 0; round < 30; ++round) {
    SCOPED_TRACE(round);
    store_protocol::pool_settings limits;
    if (round % 3 == 1) limits.size_bytes = 60'000, limits.max_keys = 12;
    const auto together = pool("together" + std::to_string(round), limits);
    const auto singly = pool("singly" + std::to_string(round), limits);
    std::vector<item> before, items;
    for (int i = 0; i < 10; ++i) before.push_back({"k" + std::to_string(i), random_value(random() % 9000, random()), {}, 0});
    for (int i = 0; i < 80; ++i) {
      item one{"k" + std::to_string(random() % 30),
               random_value(random() % 2 != 0 ? random() % 100 : random() % 12'000, random()),
               {},
               static_cast<std::uint32_t>(random())};
      if (random() % 8 == 0) one.value.clear();
      if (random() % 3 == 0) one.only = {condition(random() % 2 != 0 ? condition::if_absent : condition::if_present), 0};
      if (random() % 20 == 0) one.only = {condition::if_version, 1ull << 60};
      items.push_back(std::move(one));
    }
    const auto with_quota = [&](std::uint32_t number, auto&& run) {
      engine().set_quotas({});
      put_singly(*store_, number, before);
      if (round % 3 == 2) {
        std::uint64_t held = 0;
        for (const auto& one : engine().list_owners())
          if (one.name == principal()) held = one.bytes;
        engine().set_quotas({{principal(), held + 30'000, 0}});
      }
      return run();
    };
    const auto batched =
        with_quota(together, [&] { return store_->run_batch(opcode::batch_put, together, entries_of(items)); });
    const auto alone = with_quota(singly, [&] { return put_singly(*store_, singly, items); });
    for (std::size_t i = 0; i < items.size(); ++i) {
      EXPECT_EQ(batched[i].status, alone[i].status) << i << ": " << batched[i].text << " | " << alone[i].text;
      if (batched[i].status != 0) continue;
      EXPECT_EQ(batched[i].result.crc, alone[i].result.crc) << i;
      EXPECT_EQ(batched[i].result.value_bytes, items[i].value.size()) << i;
      EXPECT_EQ(batched[i].result.reached, durability::volatile_);
    }
    for (const reply& one : batched) refused += one.status == EDQUOT ? 1 : 0;
    for (int i = 0; i < 30; ++i) {
      const std::string key = "k" + std::to_string(i);
      const auto mine = engine().stat(together, key), theirs = engine().stat(singly, key);
      ASSERT_EQ(mine.ok(), theirs.ok()) << key;
      if (!mine) continue;
      EXPECT_EQ(mine->user_flags, theirs->user_flags) << key;
      EXPECT_EQ(get(*store_, together, key, 20'000), get(*store_, singly, key, 20'000)) << key;
    }
    EXPECT_EQ(engine().pool(together)->bytes, engine().pool(singly)->bytes);
    EXPECT_EQ(engine().pool(together)->keys, engine().pool(singly)->keys);
    for (const auto number : {together, singly}) {
      engine().set_quotas({});
      ASSERT_TRUE(engine().delete_pool(number));
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_EQ(engine().stats().grants, 0u);
}

// A condition that is not met is the reason, also where a quota would refuse the value; by every kind of put.
TEST_P(BatchRuns, AnUnmetConditionIsReportedBeforeAQuota) {
  for (const auto level : {durability::volatile_, durability::durable}) {
    const auto limited_pool = make_pool(*store_, std::string("quota of ") + name_of(level));
    for (const std::size_t bytes : {std::size_t{500}, std::size_t{60'000}, std::size_t{400'000}}) {
      engine().set_quotas({});
      item before{"there", random_value(10, 1), {}, 0};
      ASSERT_EQ(put_singly(*store_, limited_pool, {before})[0].status, 0);
      engine().set_quotas({{principal(), 20, 0}});
      item again{"there", random_value(bytes, 2), {condition::if_absent, 0}, 0};
      item other{"not there", random_value(bytes, 2), {condition::if_present, 0}, 0};
      const std::vector<item> items{again, other, item{"new", again.value, {}, 0}};
      auto list = entries_of(items);
      for (auto& one : list) one.level = level;
      const auto got = store_->run_batch(opcode::batch_put, limited_pool, list);
      EXPECT_EQ(got[0].status, EEXIST) << bytes << ": " << got[0].text;
      EXPECT_EQ(got[1].status, ENOENT) << bytes << ": " << got[1].text;
      EXPECT_EQ(got[2].status, EDQUOT) << bytes << ": " << got[2].text;
      auto request = at_level(level);
      request.only = again.only;
      EXPECT_EQ(put(*store_, limited_pool, "there", again.value, request).status, EEXIST) << bytes;
      request.only = other.only;
      EXPECT_EQ(put(*store_, limited_pool, "not there", other.value, request).status, ENOENT) << bytes;
    }
  }
}

// More than memory holds: values of the batch leave it for later ones, as they do for single puts.
TEST_P(BatchRuns, MoreThanMemoryHoldsLeavesForTheDisk) {
  const auto limited_pool = pool("pool");
  std::vector<item> items;
  for (std::size_t i = 0; i < 1000; ++i) items.push_back({std::to_string(i), random_value(60'000, i + 1), {}, 0});
  for (const auto& one : store_->run_batch(opcode::batch_put, limited_pool, entries_of(items)))
    ASSERT_EQ(one.status, 0) << one.text;
  std::vector<item> rooms = items;
  for (item& one : rooms) std::fill(one.value.begin(), one.value.end(), 0);
  const auto got = store_->run_batch(opcode::batch_get, limited_pool, entries_of(rooms));
  for (std::size_t i = 0; i < items.size(); ++i) {
    ASSERT_EQ(got[i].status, 0) << i << ": " << got[i].text;
    ASSERT_EQ(rooms[i].value, items[i].value) << i;
  }
  EXPECT_GT(engine().stats().spilled_bytes, 0u);
  EXPECT_EQ(engine().stats().grants, 0u);
  EXPECT_EQ(engine().stats().pins, 0u);
}

// A cache within its share: the newest values are there.
TEST_P(BatchRuns, ACacheKeepsToItsShare) {
  store_protocol::pool_settings settings;
  settings.level = durability::volatile_;
  settings.size_bytes = 100'000;
  store_protocol::cache_settings cache;
  const auto made = store_->create_pool("cache", settings, cache);
  ASSERT_TRUE(made) << made.error().message;
  std::vector<item> items;
  for (std::size_t i = 0; i < 200; ++i) items.push_back({std::to_string(i), random_value(10'000, i), {}, 0});
  auto list = entries_of(items);
  for (auto& one : list) one.ttl_ms = 3'600'000;
  for (const auto& one : store_->run_batch(opcode::batch_put, *made, list)) ASSERT_EQ(one.status, 0) << one.text;
  EXPECT_LE(engine().pool(*made)->bytes, 100'000u);
  EXPECT_GT(engine().pool(*made)->bytes, 0u);
  list[0].ttl_ms = 1;
  ASSERT_EQ(store_->run_batch(opcode::batch_put, *made, std::span(list).first(1))[0].status, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(store_->run_batch(opcode::batch_get, *made, std::span(list).first(1))[0].status, ENOENT);
  // Another pool has no time to live.
  EXPECT_EQ(store_->run_batch(opcode::batch_put, pool("plain"), std::span(list).first(1))[0].status, EINVAL);
}

INSTANTIATE_TEST_SUITE_P(Ways, BatchRuns, testing::Values("rings", "socket", "tcp"),
                         [](const auto& one) { return std::string(one.param); });

// Clients disconnect while a frame is in progress, or with an unread reply: nothing stays held.
TEST(BatchRunsOfClientsThatGo, LeaveNothingBehind) {
  store_rig rig;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  store_protocol::pool_settings settings;
  settings.level = durability::volatile_;
  const auto pool = make_pool(*store, "pool", settings);
  const auto value = random_value(10'000, 1);
  std::string body;
  for (int i = 0; i < 256; ++i) {
    store_protocol::batch_item one;
    const std::string key = "k" + std::to_string(i);
    one.key = key;
    one.room = value.size();
    one.value = {reinterpret_cast<const char*>(value.data()), value.size()};
    store_protocol::append(body, one);
  }
  store_protocol::head header;
  header.op = opcode::batch_put;
  header.request_id = 9;
  header.pool_id = pool;
  header.body_bytes = static_cast<std::uint32_t>(body.size());
  header.body_crc = arch::crc32c(body.data(), body.size());
  std::string frame;
  ASSERT_TRUE(store_protocol::encode(header, {}, {}, frame));
  frame += body;
  for (const std::size_t part : {frame.size() / 2, frame.size() - 1, frame.size()}) {
    raw_peer peer(rig.over_unix(), pool, "pool");
    for (std::size_t sent = 0; sent < part;) sent += peer.send(std::string_view(frame).substr(sent, part - sent));
  }
  // (The last one was whole: its values come, or the client's end came first.)
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (rig.server().engine().pool(pool)->keys != 256 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(rig.server().engine().pool(pool)->keys, 256u);
  // Gets whose answers nobody takes.
  std::string wanted;
  for (int i = 0; i < 256; ++i) {
    store_protocol::batch_item one;
    const std::string key = "k" + std::to_string(i);
    one.key = key;
    one.room = value.size();
    store_protocol::append(wanted, one);
  }
  header.op = opcode::batch_get;
  header.value_bytes = 256 * value.size();
  header.body_bytes = static_cast<std::uint32_t>(wanted.size());
  header.body_crc = arch::crc32c(wanted.data(), wanted.size());
  frame.clear();
  ASSERT_TRUE(store_protocol::encode(header, {}, {}, frame));
  frame += wanted;
  {
    raw_peer peer(rig.over_unix(), pool, "pool");
    for (int i = 0; i < 20; ++i) peer.send(frame);
  }
  EXPECT_EQ(put(*store, pool, "after", value).status, 0);
  EXPECT_EQ(rig.server().engine().stats().grants, 0u);
  EXPECT_EQ(rig.server().engine().stats().pins, 0u);
}

}  // namespace
}  // namespace pl::store_test
