// SPDX-License-Identifier: Apache-2.0
// Values through the whole stack, by every path: what was put is what comes back, and each answer says how.
#include "test/store/server/store_rig.hpp"

namespace pl::store_test {
namespace {

using store_protocol::durability;
using store_protocol::opcode;
using store_protocol::path;

struct way_case {
  const char* name;
  bool tcp, shm;
  path small, large;
  std::size_t limit = 16385;
  bool ucx = false;
  bool rings = false, arena = true;
};

class store_paths : public testing::TestWithParam<way_case> {
 protected:
  void SetUp() override {
    if (GetParam().ucx) rig_.config.ucx = "on";
    if (GetParam().rings) rig_.config.spin_us = 20;
    if (!GetParam().arena) rig_.config.mappers = {"uid:4294967294"};
    rig_.start();
    auto options = GetParam().tcp ? rig_.over_tcp() : rig_.over_unix();
    options.use_shm = GetParam().shm;
    if (GetParam().ucx) options.ucx = store_client::ucx_mode::on;
    store_ = store_rig::open(options);
    ASSERT_NE(store_, nullptr);
    if (GetParam().ucx && !store_->why_no_ucx().empty()) GTEST_SKIP() << store_->why_no_ucx();
    pool_ = make_pool(*store_, "pool");
  }
  path path_for(std::size_t bytes) const { return bytes >= GetParam().limit ? GetParam().large : GetParam().small; }
  store_rig rig_;
  std::unique_ptr<store_client::client> store_;
  std::uint32_t pool_ = 0;
};

TEST_P(store_paths, EverySizeComesBack) {
  for (const std::size_t bytes : {0u, 1u, 4096u, 16384u, 16385u, 65536u, 65537u, 1u << 20, (4u << 20) + 1, 11u << 20}) {
    const auto value = random_value(bytes, bytes);
    const auto level = bytes % 2 == 0 ? durability::durable : durability::volatile_;
    const auto answered = put(*store_, pool_, "key" + std::to_string(bytes), value, at_level(level));
    ASSERT_EQ(answered.status, 0) << answered.text;
    EXPECT_EQ(answered.result.way, path_for(bytes)) << bytes;
    EXPECT_GE(answered.result.reached, level) << bytes;
    EXPECT_EQ(answered.result.value_bytes, bytes);
    EXPECT_GT(answered.result.version, 0u);
    store_client::reply got;
    EXPECT_EQ(get(*store_, pool_, "key" + std::to_string(bytes), bytes + 5, &got), value) << bytes;
    EXPECT_EQ(got.result.version, answered.result.version);
    EXPECT_EQ(got.result.crc, answered.result.crc);
    EXPECT_EQ(got.result.way, path_for(bytes + 5)) << bytes;
  }
}

// Long enough for the engine to hear of it in between, from the client or from the connection.
TEST_P(store_paths, LongDurableValuesGoToDiskWhileTheyCome) {
  const auto early = [&] { return rig_.server().engine().stats().early_writes; };
  const bool can = GetParam().large != path::ucx;
  for (unsigned i = 0; i < 30; ++i) {
    const auto value = random_value((17u << 20) + i, i);
    const auto answered = put(*store_, pool_, "k", value, at_level(durability::durable));
    ASSERT_EQ(answered.status, 0) << answered.text;
    EXPECT_EQ(get(*store_, pool_, "k", value.size()), value);
    if (!can || early() > 0) break;  // a busy machine may have to try again
  }
  EXPECT_EQ(early() > 0, can);
  const auto before = early();
  ASSERT_EQ(put(*store_, pool_, "k", random_value(17u << 20, 1), at_level(durability::volatile_)).status, 0);
  EXPECT_EQ(early(), before);
}

TEST_P(store_paths, PartsOfValues) {
  const auto value = random_value(3 << 20, 1);
  ASSERT_EQ(put(*store_, pool_, "k", value).status, 0);
  for (const auto& [offset, bytes] :
       {std::pair<std::size_t, std::size_t>{0, 10}, {5, 100'000}, {3 << 20, 10}, {(3 << 20) - 1, 10}}) {
    store_client::get_request options;
    options.offset = offset;
    const auto end = std::min(value.size(), offset + bytes);
    EXPECT_EQ(get(*store_, pool_, "k", bytes, nullptr, options),
              bytes_t(value.begin() + static_cast<long>(offset), value.begin() + static_cast<long>(end)));
  }
  store_client::get_request behind;
  behind.offset = (3 << 20) + 1;
  bytes_t room(10);
  EXPECT_EQ(store_->run(store_->make_get(pool_, "k", memory_of(room), behind)).status, EINVAL);

  // A part is replaced, and one reaches past the end.
  auto expected = value;
  for (const std::size_t offset : {1000u, 3u << 20, (3u << 20) + 200'000}) {
    const auto part = random_value(150'000, offset);
    store_client::put_request options;
    options.offset = offset;
    const auto answered = put(*store_, pool_, "k", part, options);
    ASSERT_EQ(answered.status, 0) << answered.text;
    if (expected.size() < offset + part.size()) expected.resize(offset + part.size());
    std::copy(part.begin(), part.end(), expected.begin() + static_cast<long>(offset));
    EXPECT_EQ(get(*store_, pool_, "k", expected.size() + 1), expected) << offset;
  }
}

TEST_P(store_paths, Conditions) {
  const auto value = random_value(20'000, 1);
  store_client::put_request absent, version;
  absent.only = {store_protocol::condition::if_absent, 0};
  const auto first = put(*store_, pool_, "k", value, absent);
  ASSERT_EQ(first.status, 0) << first.text;
  EXPECT_EQ(put(*store_, pool_, "k", value, absent).status, EEXIST);
  version.only = {store_protocol::condition::if_version, first.result.version};
  const auto second = put(*store_, pool_, "k", random_value(20'000, 2), version);
  EXPECT_EQ(second.status, 0) << second.text;
  EXPECT_EQ(put(*store_, pool_, "k", value, version).status, ESTALE);
  EXPECT_EQ(store_->run(store_->make_erase(pool_, "k", version)).status, ESTALE);
  EXPECT_EQ(store_->run(store_->make_erase(pool_, "k", {})).status, 0);
  EXPECT_EQ(store_->run(store_->make_erase(pool_, "k", {})).status, ENOENT);
  bytes_t room(10);
  const auto gone = store_->run(store_->make_get(pool_, "k", memory_of(room), {}));
  EXPECT_EQ(gone.status, ENOENT);
  EXPECT_FALSE(gone.text.empty());
}

TEST_P(store_paths, ManyUnderWayAtOnce) {
  std::vector<store_client::operation_ptr> all;
  std::vector<bytes_t> values;
  for (std::size_t i = 0; i < 200; ++i) values.push_back(random_value(i % 10 == 0 ? 300'000 : 100 + i, i));
  for (std::size_t i = 0; i < values.size(); ++i)
    all.push_back(store_->make_put(pool_, "k" + std::to_string(i), memory_of(values[i]), at_level(durability::volatile_)));
  store_->start(all);
  for (const auto& one : all) {
    ASSERT_TRUE(store_->wait(one));
    ASSERT_EQ(one->got.status, 0) << one->got.text;
  }
  std::vector<bytes_t> rooms(values.size(), bytes_t(300'000));
  all.clear();
  for (std::size_t i = 0; i < values.size(); ++i)
    all.push_back(store_->make_get(pool_, "k" + std::to_string(i), memory_of(rooms[i]), {}));
  store_->start(all);
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_TRUE(store_->wait(all[i]));
    rooms[i].resize(all[i]->got.moved_bytes);
    ASSERT_EQ(rooms[i], values[i]) << i;
  }
}

// Puts of one key that are started together are done in the order in which they were started.
TEST_P(store_paths, OrderOfWhatIsUnderWay) {
  for (const auto level : {durability::volatile_, durability::durable}) {
    std::vector<store_client::operation_ptr> all;
    std::vector<bytes_t> values;
    for (std::size_t i = 0; i < 100; ++i) values.push_back(random_value(1000 + i, i));
    for (const auto& value : values) all.push_back(store_->make_put(pool_, "same", memory_of(value), at_level(level)));
    store_->start(all);
    std::uint64_t before = 0;
    for (const auto& one : all) {
      ASSERT_TRUE(store_->wait(one));
      ASSERT_EQ(one->got.status, 0) << one->got.text;
      EXPECT_GT(one->got.result.version, before);
      before = one->got.result.version;
    }
    EXPECT_EQ(get(*store_, pool_, "same", 2000), values.back());
  }
}

TEST_P(store_paths, ConnectionsBreakAndEverythingIsAppliedOnce) {
  ASSERT_EQ(put(*store_, pool_, "counter", {0}).status, 0);
  const auto large = random_value(2 << 20, 3);
  for (int i = 1; i <= 20; ++i) {
    // Asked, and the connection is gone before the answer.
    const auto one = store_->make_put(pool_, "large", memory_of(large), {});
    store_client::put_request absent;
    absent.only = {store_protocol::condition::if_absent, 0};
    const bytes_t small{static_cast<unsigned char>(i)};
    const auto two = store_->make_put(pool_, "new" + std::to_string(i), memory_of(small), absent);
    store_->start(std::vector{one, two});
    if (i % 2 == 0) store_->test(one);
    store_->break_connection();
    ASSERT_TRUE(store_->wait(one) && store_->wait(two));
    EXPECT_EQ(one->got.status, 0) << one->got.text;
    EXPECT_EQ(two->got.status, 0) << "applied twice? " << two->got.text;
  }
  EXPECT_EQ(store_->reconnects(), 20u);
  EXPECT_EQ(get(*store_, pool_, "large", large.size()), large);
  // Grants of the lost connections come back when the server has seen them go.
  const auto limit = store_client::clock::now() + std::chrono::seconds(10);
  while (rig_.server().engine().stats().grants != 0 && store_client::clock::now() < limit) std::this_thread::yield();
  EXPECT_EQ(rig_.server().engine().stats().grants, 0u);
}

TEST_P(store_paths, ServerComesBack) {
  const auto value = random_value(1 << 20, 4);
  const auto answered = put(*store_, pool_, "k", value);
  ASSERT_EQ(answered.status, 0);
  ASSERT_EQ(put(*store_, pool_, "gone", value, at_level(durability::volatile_)).status, 0);
  rig_.stop();
  bytes_t room(1 << 20);
  const auto waiting = store_->make_get(pool_, "k", memory_of(room), {});
  store_->start(waiting);
  EXPECT_FALSE(store_->wait(waiting, store_client::clock::now() + std::chrono::milliseconds(20)));
  rig_.start();
  ASSERT_TRUE(store_->wait(waiting));
  EXPECT_EQ(waiting->got.status, 0) << waiting->got.text;
  EXPECT_EQ(room, value);
  EXPECT_EQ(waiting->got.result.version, answered.result.version);
  EXPECT_EQ(store_->run(store_->make_get(pool_, "gone", memory_of(room), {})).status, ENOENT);
}

INSTANTIATE_TEST_SUITE_P(
    all, store_paths,
    testing::Values(way_case{"unix", false, false, path::unix_socket, path::unix_socket},
                    way_case{"shm", false, true, path::unix_socket, path::shm_direct},
                    way_case{"rings", false, true, path::unix_socket, path::shm_direct, 16385, false, true},
                    way_case{"rings_alone", false, true, path::unix_socket, path::unix_socket, 16385, false, true, false},
                    way_case{"tcp", true, true, path::tcp, path::tcp},
                    way_case{"ucx", true, false, path::tcp, path::ucx, 256u << 10, true},
                    way_case{"ucx_beside_unix", false, false, path::unix_socket, path::ucx, 256u << 10, true}),
    [](const auto& one) { return one.param.name; });

TEST(store_client, RequiredPathsAreAnErrorWhereTheyAreMissing) {
  store_rig rig;
  rig.start();
  auto options = rig.over_tcp();
  options.require = path::shm_direct;
  const auto store = store_rig::open(options);
  const auto pool = make_pool(*store, "p");
  const auto refused = put(*store, pool, "k", {1});
  EXPECT_EQ(refused.status, ENOTSUP);
  EXPECT_NE(refused.text.find("shm-direct"), std::string::npos) << refused.text;
  options = rig.over_unix();
  options.require = path::shm_direct;
  const auto near = store_rig::open(options);
  ASSERT_TRUE(near->open_pool("p"));
  EXPECT_EQ(put(*near, pool, "k", {1}).result.way, path::shm_direct);
}

TEST(store_client, CallbacksAndEventsComeOnce) {
  store_rig rig;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  const auto value = random_value(100'000, 1);
  std::atomic<int> calls{0};
  std::atomic<bool> good{true};
  for (int i = 0; i < 50; ++i) {
    const auto one = store->make_put(pool, "k" + std::to_string(i), memory_of(value), at_level(durability::volatile_));
    one->callback = [&](store_client::operation& ended) {
      if (ended.got.status != 0) good = false;
      ++calls;
      calls.notify_all();
    };
    store->start(one);  // nobody waits for it
  }
  for (int seen = calls; seen < 50; seen = calls) calls.wait(seen);
  EXPECT_TRUE(good);
  EXPECT_EQ(calls, 50);
}

TEST(store_client, FindGoesThroughPagesByTheLastKey) {
  store_rig rig;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  for (int i = 0; i < 30; ++i) ASSERT_EQ(put(*store, pool, (i % 2 ? "a" : "b") + std::to_string(100 + i), {1, 2}).status, 0);
  store_client::key_search search;
  search.prefix = "a";
  search.limit = 4;
  std::vector<std::string> keys;
  for (;;) {
    const auto got = store->run(store->make_find(pool, search));
    ASSERT_EQ(got.status, 0) << got.text;
    const auto page = store_protocol::decode_keys(got.body);
    ASSERT_TRUE(page);
    for (const auto& one : *page) {
      EXPECT_EQ(one.value_bytes, 2u);
      keys.push_back(one.key);
    }
    if (!got.more) break;
    search.after = *got.fields->after;
  }
  ASSERT_EQ(keys.size(), 15u);
  EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end()));
  search = {};
  search.regex = "^b1.[24]$";
  EXPECT_EQ(store_protocol::decode_keys(store->run(store->make_find(pool, search)).body)->size(), 6u);
}

}  // namespace
}  // namespace pl::store_test
