// SPDX-License-Identifier: Apache-2.0
// Batches, and erasing by prefix, through the whole stack: outcomes item by item, limits of frames, rights, repetition after
// a lost connection, all or nothing over a restart.
#include "store/protocol/batch.hpp"

#include "test/store/server/raw_peer.hpp"
#include "test/store/server/store_rig.hpp"

namespace pl::store_test {
namespace {

using store_client::batch_entry;
using store_client::batch_settings;
using store_client::reply;
using store_protocol::condition;
using store_protocol::durability;
using store_protocol::opcode;

class Batches : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    rig_.config.arena_bytes = 128u << 20;
    rig_.start();
    store_ = store_rig::open(options());
    ASSERT_NE(store_, nullptr);
    store_protocol::pool_settings settings;
    settings.level = level();
    pool_ = make_pool(*store_, "pool", settings);
  }
  // Values of volatile pools go by runs of the engine (store/engine/runs.hpp), others one by one.
  static durability level() {
    return std::string_view(GetParam()).starts_with("volatile") ? durability::volatile_ : durability::durable;
  }
  store_client::client_options options() const {
    auto out = std::string_view(GetParam()).ends_with("tcp") ? rig_.over_tcp() : rig_.over_unix();
    out.use_shm = !std::string_view(GetParam()).ends_with("socket");
    return out;
  }
  static batch_entry entry(std::string_view key, const bytes_t& value) {
    batch_entry out;
    out.key = key;
    out.buffer = memory_of(value);
    return out;
  }
  // Keys "0", "1", ... with sizes of every kind, also of those that no frame takes.
  void make_values(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      keys_.push_back("key" + std::to_string(i));
      const std::size_t size = i % 97 == 96 ? 300'000 : i % 50 == 49 ? 65'536 : i % 11 == 0 ? 0 : i * 37 % 9000;
      values_.push_back(random_value(size, i + 1));
    }
  }
  std::vector<batch_entry> entries() const {
    std::vector<batch_entry> out;
    for (std::size_t i = 0; i < keys_.size(); ++i) out.push_back(entry(keys_[i], values_[i]));
    return out;
  }
  store_rig rig_;
  std::unique_ptr<store_client::client> store_;
  std::uint32_t pool_ = 0;
  std::vector<std::string> keys_;
  std::vector<bytes_t> values_;
};

TEST_P(Batches, EverySizeComesBackInTheOrderOfTheItems) {
  make_values(1500);
  const auto put_done = store_->run_batch(opcode::batch_put, pool_, entries());
  ASSERT_EQ(put_done.size(), 1500u);
  for (std::size_t i = 0; i < put_done.size(); ++i) {
    ASSERT_EQ(put_done[i].status, 0) << i << ": " << put_done[i].text;
    EXPECT_EQ(put_done[i].result.reached, level());
    EXPECT_EQ(put_done[i].moved_bytes, values_[i].size());
  }
  // Every tenth is asked for under a name that is not there, others with too little room.
  std::vector<std::string> names = keys_;
  std::vector<bytes_t> rooms;
  std::vector<batch_entry> wanted;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i % 10 == 3) names[i] = "none" + std::to_string(i);
    rooms.emplace_back(i % 10 == 4 ? values_[i].size() / 2 : values_[i].size() + 10);
  }
  for (std::size_t i = 0; i < names.size(); ++i) wanted.push_back(entry(names[i], rooms[i]));
  const auto got = store_->run_batch(opcode::batch_get, pool_, wanted);
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (i % 10 == 3) {
      EXPECT_EQ(got[i].status, ENOENT) << i;
      EXPECT_NE(got[i].text.find(names[i]), std::string::npos) << got[i].text;
      continue;
    }
    ASSERT_EQ(got[i].status, 0) << i << ": " << got[i].text;
    EXPECT_EQ(got[i].result.value_bytes, values_[i].size()) << i;
    EXPECT_EQ(got[i].result.version, put_done[i].result.version) << i;
    const std::size_t bytes = std::min(values_[i].size(), rooms[i].size());
    EXPECT_EQ(got[i].moved_bytes, bytes) << i;
    EXPECT_TRUE(std::equal(values_[i].begin(), values_[i].begin() + static_cast<std::ptrdiff_t>(bytes), rooms[i].begin()))
        << i;
  }
  const auto known = store_->run_batch(opcode::batch_exists, pool_, wanted);
  for (std::size_t i = 0; i < known.size(); ++i) EXPECT_EQ(known[i].status, i % 10 == 3 ? ENOENT : 0) << i;
  EXPECT_EQ(known[0].result.version, put_done[0].result.version);
  const auto erased = store_->run_batch(opcode::batch_erase, pool_, wanted);
  for (std::size_t i = 0; i < erased.size(); ++i) EXPECT_EQ(erased[i].status, i % 10 == 3 ? ENOENT : 0) << i;
  EXPECT_EQ(rig_.server().engine().pool(pool_)->keys, 150u);
}

TEST_P(Batches, ConditionsHoldForEachItem) {
  make_values(4);
  ASSERT_EQ(put(*store_, pool_, keys_[0], values_[0]).status, 0);
  const auto present = put(*store_, pool_, keys_[1], values_[1]).result.version;
  auto list = entries();
  list[0].only = {condition::if_absent, 0};
  list[1].only = {condition::if_version, present};
  list[2].only = {condition::if_present, 0};
  list[3].only = {condition::if_absent, 0};
  list[3].user_flags = 77;
  const auto done = store_->run_batch(opcode::batch_put, pool_, list);
  EXPECT_EQ(done[0].status, EEXIST);
  EXPECT_EQ(done[1].status, 0) << done[1].text;
  EXPECT_EQ(done[2].status, ENOENT);
  EXPECT_EQ(done[3].status, 0) << done[3].text;
  list[1].only = {condition::if_version, present};
  const auto again = store_->run_batch(opcode::batch_erase, pool_, std::span(list).subspan(1, 1));
  EXPECT_EQ(again[0].status, ESTALE);
  const auto known = store_->run_batch(opcode::batch_exists, pool_, list);
  EXPECT_EQ(known[3].result.user_flags, 77u);
}

// The server's room is smaller than the batch: items that found none wait for it by themselves.
TEST_P(Batches, MoreThanTheArenaHolds) {
  for (std::size_t i = 0; i < 3000; ++i) keys_.push_back(std::to_string(i)), values_.push_back(random_value(60'000, i));
  const auto done = store_->run_batch(opcode::batch_put, pool_, entries());
  for (std::size_t i = 0; i < done.size(); ++i) ASSERT_EQ(done[i].status, 0) << i << ": " << done[i].text;
  std::vector<bytes_t> rooms(3000, bytes_t(60'000));
  std::vector<batch_entry> wanted;
  for (std::size_t i = 0; i < keys_.size(); ++i) wanted.push_back(entry(keys_[i], rooms[i]));
  const auto got = store_->run_batch(opcode::batch_get, pool_, wanted);
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].status, 0) << i << ": " << got[i].text;
    ASSERT_TRUE(rooms[i] == values_[i]) << i;
  }
}

TEST_P(Batches, AllOrNothing) {
  make_values(40);
  auto list = entries();
  list[20].only = {condition::if_present, 0};
  batch_settings whole;
  whole.atomic = true;
  pool_ = make_pool(*store_, "durable");
  const auto refused = store_->run_batch(opcode::batch_put, pool_, list, whole);
  EXPECT_EQ(refused[20].status, ENOENT);
  EXPECT_EQ(refused[0].status, ECANCELED);
  EXPECT_EQ(refused[39].status, ECANCELED);
  EXPECT_EQ(rig_.server().engine().pool(pool_)->keys, 0u);
  list[20].only = {condition::if_absent, 0};
  for (const auto& one : store_->run_batch(opcode::batch_put, pool_, list, whole)) EXPECT_EQ(one.status, 0) << one.text;
  store_.reset();
  rig_.stop();
  rig_.start();
  store_ = store_rig::open(options());
  pool_ = *store_->open_pool("durable");
  for (std::size_t i = 0; i < keys_.size(); ++i) EXPECT_EQ(get(*store_, pool_, keys_[i], values_[i].size()), values_[i]);
  for (const auto& one : store_->run_batch(opcode::batch_erase, pool_, entries(), whole))
    EXPECT_EQ(one.status, 0) << one.text;
  const auto again = store_->run_batch(opcode::batch_erase, pool_, entries(), whole);
  EXPECT_EQ(again[0].status, ENOENT);
  // What one frame does not take is refused as a whole.
  keys_.assign(1, "large");
  values_.assign(1, random_value(5u << 20, 1));
  EXPECT_EQ(store_->run_batch(opcode::batch_put, pool_, entries(), whole)[0].status, EMSGSIZE);
  store_protocol::pool_settings quickly;
  quickly.level = durability::volatile_;
  const auto quick = make_pool(*store_, "quick", quickly);
  values_.assign(1, random_value(50, 1));
  EXPECT_EQ(store_->run_batch(opcode::batch_put, quick, entries(), whole)[0].status, ENOTSUP);
}

// Its answer is lost: the batch is sent again, and each item is applied once.
TEST_P(Batches, AreAppliedOnceAfterALostConnection) {
  make_values(200);
  std::vector<batch_entry> list = entries();
  for (auto& one : list) one.only = {condition::if_absent, 0};
  std::atomic<bool> over{false};
  std::thread breaking([&] {
    // The pauses grow, so that a batch ends at last where a connection takes longer than the first ones.
    for (std::chrono::milliseconds pause(10); !over; ++pause) {
      std::this_thread::sleep_for(pause);
      store_->break_connection();
    }
  });
  for (int round = 0; round < 20; ++round) {
    for (std::size_t i = 0; i < keys_.size(); ++i) keys_[i] = std::to_string(round) + "/" + std::to_string(i);
    for (std::size_t i = 0; i < keys_.size(); ++i) list[i].key = keys_[i];
    const auto done = store_->run_batch(opcode::batch_put, pool_, list);
    // (EEXIST would say that an item was applied, forgotten, and tried again.)
    for (std::size_t i = 0; i < done.size(); ++i) EXPECT_EQ(done[i].status, 0) << round << ", " << i << ": " << done[i].text;
  }
  over = true;
  breaking.join();
}

TEST_P(Batches, KeepRightsAndLimits) {
  make_values(3);
  store_protocol::pool_settings reader;
  reader.access = "uid:" + std::to_string(geteuid()) + "=r,tcp=r";
  make_pool(*store_, "read only", reader);
  store_protocol::pool_settings few;
  few.max_keys = 2;
  const auto small = make_pool(*store_, "few", few);
  int refused = 0;
  for (const auto& one : store_->run_batch(opcode::batch_put, small, entries())) refused += one.status == EDQUOT ? 1 : 0;
  EXPECT_EQ(refused, 1);
  auto bad = entries();
  const std::string longest(5000, 'k');
  bad[0].key = {}, bad[1].key = longest;
  const auto done = store_->run_batch(opcode::batch_put, pool_, bad);
  EXPECT_NE(done[0].status, 0);
  EXPECT_NE(done[1].status, 0);
  EXPECT_EQ(done[2].status, 0) << done[2].text;
  // Not administrators any more.
  store_.reset();
  rig_.stop();
  rig_.config.admins = {"uid:4294967294"};
  rig_.start();
  store_ = store_rig::open(options());
  const auto pool = store_->open_pool("read only");
  ASSERT_TRUE(pool);
  EXPECT_EQ(store_->run_batch(opcode::batch_put, *pool, entries())[0].status, EACCES);
  EXPECT_EQ(store_->run_batch(opcode::batch_erase, *pool, entries())[0].status, EACCES);
  EXPECT_EQ(store_->erase_prefix(*pool, "k").status, EACCES);
  EXPECT_EQ(store_->run_batch(opcode::batch_get, *pool, entries())[0].status, ENOENT);
}

TEST_P(Batches, PrefixesAreErased) {
  std::vector<bytes_t> value(1, random_value(10, 1));
  keys_.clear();
  for (int i = 0; i < 2500; ++i) keys_.push_back((i % 5 == 0 ? "b/" : "a/") + std::to_string(i));
  values_.assign(keys_.size(), value[0]);
  auto list = entries();
  for (std::size_t i = 0; i < list.size(); ++i) list[i].level = i % 2 == 0 ? durability::volatile_ : durability::logged;
  for (const auto& one : store_->run_batch(opcode::batch_put, pool_, list)) ASSERT_EQ(one.status, 0) << one.text;
  const auto done = store_->erase_prefix(pool_, "a/");
  EXPECT_EQ(done.status, 0) << done.text;
  EXPECT_EQ(done.result.value_bytes, 2000u);
  EXPECT_EQ(rig_.server().engine().pool(pool_)->keys, 500u);
  EXPECT_EQ(store_->erase_prefix(pool_, "a/").result.value_bytes, 0u);
  EXPECT_EQ(store_->erase_prefix(pool_, "").status, EINVAL);
}

INSTANTIATE_TEST_SUITE_P(Ways, Batches,
                         testing::Values("rings", "socket", "tcp", "volatile_rings", "volatile_socket", "volatile_tcp"),
                         [](const auto& one) { return std::string(one.param); });

// A batch that says nonsense is refused, and the connection stays.
TEST(BatchFrames, AreCheckedBeforeAnythingIsDone) {
  store_rig rig;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "pool");
  const auto ask = [&](opcode op, std::string body, std::uint16_t flags = 0) {
    const auto one = store->make_plain(op, pool, {});
    one->body = std::move(body);
    one->head.flags |= flags;
    return store->run(one);
  };
  EXPECT_EQ(ask(opcode::batch_get, "").status, EINVAL);
  EXPECT_EQ(ask(opcode::batch_put, "abc").status, EPROTO);
  std::string many, one;
  store_protocol::batch_item item;
  item.key = "k";
  store_protocol::append(one, item);
  for (std::size_t i = 0; i < store_protocol::kMaxBatchChanges + 1; ++i) many += one;
  EXPECT_EQ(ask(opcode::batch_put, many).status, EMSGSIZE);
  EXPECT_EQ(ask(opcode::batch_put, many, store_protocol::flag::atomic).status, 0);
  for (std::size_t i = many.size() / one.size(); i <= store_protocol::kMaxBatchItems; ++i) many += one;
  EXPECT_EQ(ask(opcode::batch_get, many).status, EMSGSIZE);
  EXPECT_EQ(ask(opcode::batch_get, one, store_protocol::flag::atomic).status, EINVAL);
  for (std::size_t cut = 1; cut < one.size(); ++cut)
    EXPECT_EQ(ask(opcode::batch_put, one.substr(0, cut)).status, EPROTO) << cut;
  std::string bad = one;
  bad[2] = 9;  // a condition that there is not
  EXPECT_EQ(ask(opcode::batch_put, bad).status, EPROTO);
  EXPECT_EQ(ask(opcode::batch_put, one).status, 0);
  EXPECT_EQ(rig.server().engine().pool(pool)->keys, 1u);
}

}  // namespace
}  // namespace pl::store_test
