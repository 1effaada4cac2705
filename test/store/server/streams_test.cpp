// SPDX-License-Identifier: Apache-2.0
// Values that are longer than the server's memory holds, over each kind of connection.
#include "test/store/server/store_rig.hpp"

namespace pl::store_test {
namespace {

using store_protocol::durability;
using store_protocol::opcode;
using store_protocol::path;

constexpr std::size_t kLong = (11u << 20) + 4321;  // the memory tier has 8 MiB, half of which one value may take

class store_streams : public testing::Test {
 protected:
  void SetUp() override {
    rig_.config.arena_bytes = 8u << 20;
    rig_.config.chunk_bytes = 8u << 20;
    rig_.config.extent_file_bytes = 8u << 20;
    rig_.config.disk_limit_bytes = 48u << 20;
    rig_.start();
    store_ = store_rig::open(rig_.over_unix());
    pool_ = make_pool(*store_, "p");
  }
  std::uint64_t disk_used() { return rig_.server().engine().stats().disk_used_bytes; }

  store_rig rig_;
  std::unique_ptr<store_client::client> store_;
  std::uint32_t pool_ = 0;
};

TEST_F(store_streams, UseTheSocketAndReportIt) {
  const auto value = random_value(kLong, 1);
  const auto done = put(*store_, pool_, "k", value);
  ASSERT_EQ(done.status, 0) << done.text;
  EXPECT_EQ(done.result.way, path::unix_socket) << "the store's memory is mapped, and cannot hold it";
  EXPECT_EQ(done.result.reached, durability::durable);
  EXPECT_EQ(done.result.value_bytes, kLong);
  const auto remote = store_rig::open(rig_.over_tcp());
  ASSERT_TRUE(remote->open_pool("p"));
  for (store_client::client* connection : {store_.get(), remote.get()}) {
    store_client::reply got;
    EXPECT_TRUE(get(*connection, pool_, "k", kLong, &got) == value);
    EXPECT_EQ(got.result.way, connection == remote.get() ? path::tcp : path::unix_socket);
    EXPECT_EQ(got.result.crc, done.result.crc);
    store_client::get_request part;
    part.offset = (4u << 20) - 77;
    part.verify = true;
    const auto middle = get(*connection, pool_, "k", 5u << 20, nullptr, part);
    EXPECT_TRUE(std::equal(middle.begin(), middle.end(), value.begin() + static_cast<std::ptrdiff_t>(part.offset)));
    EXPECT_EQ(middle.size(), 5u << 20);
  }
  // Values in memory still go by memory.
  EXPECT_EQ(put(*store_, pool_, "small", random_value(1 << 20, 2)).result.way, path::shm_direct);
  EXPECT_LE(rig_.server().engine().stats().arena_used_bytes, 2u << 20);
}

TEST_F(store_streams, ARequiredPathIsNotLeft) {
  ASSERT_EQ(put(*store_, pool_, "k", random_value(kLong, 1)).status, 0);
  auto options = rig_.over_unix();
  options.require = path::shm_direct;
  const auto strict = store_rig::open(options);
  ASSERT_TRUE(strict->open_pool("p"));
  bytes_t room(kLong);
  const auto got = strict->run(strict->make_get(pool_, "k", memory_of(room), {}));
  EXPECT_EQ(got.status, ENOTSUP);
  EXPECT_NE(got.text.find("shm-direct"), std::string::npos) << got.text;
  EXPECT_EQ(put(*strict, pool_, "k", room).status, ENOTSUP);
}

// While the disk has both windows the connection is not read, and nothing but the server's clock holds it.
TEST_F(store_streams, APutThatIsQuickerThanTheDiskEndsOnItsConnection) {
  rig_.stop();
  rig_.config.disk_limit_bytes = 512u << 20;
  rig_.start();
  const auto value = random_value((160u << 20) + 77, 1);
  const auto local = store_rig::open(rig_.over_unix()), remote = store_rig::open(rig_.over_tcp());
  for (store_client::client* connection : {local.get(), remote.get()}) {
    ASSERT_TRUE(connection->open_pool("p"));
    const auto done = put(*connection, pool_, "k", value);
    ASSERT_EQ(done.status, 0) << done.text;
    EXPECT_EQ(connection->reconnects(), 0u);
  }
  EXPECT_TRUE(get(*local, pool_, "k", value.size()) == value);
}

TEST_F(store_streams, SeveralAtOnceBesideSmallOnes) {
  const auto value = random_value(kLong, 1), other = random_value(kLong, 2), small = random_value(1000, 3);
  const auto remote = store_rig::open(rig_.over_tcp());
  ASSERT_TRUE(remote->open_pool("p"));
  std::vector<store_client::operation_ptr> puts{remote->make_put(pool_, "one", memory_of(value), {}),
                                                remote->make_put(pool_, "small", memory_of(small), {}),
                                                remote->make_put(pool_, "two", memory_of(other), {})};
  remote->start(puts);
  for (const auto& each : puts) {
    ASSERT_TRUE(remote->wait(each));
    EXPECT_EQ(each->got.status, 0) << each->got.text;
  }
  bytes_t one(kLong), two(kLong), three(1000);
  std::vector<store_client::operation_ptr> gets{remote->make_get(pool_, "one", memory_of(one), {}),
                                                remote->make_get(pool_, "two", memory_of(two), {}),
                                                remote->make_get(pool_, "small", memory_of(three), {})};
  remote->start(gets);
  for (const auto& each : gets) {
    ASSERT_TRUE(remote->wait(each));
    EXPECT_EQ(each->got.status, 0) << each->got.text;
  }
  EXPECT_TRUE(one == value && two == other && three == small);
}

TEST_F(store_streams, RefusalsLeaveTheConnectionAndTheSpaceAsTheyWere) {
  const auto value = random_value(kLong, 1);
  ASSERT_EQ(put(*store_, pool_, "k", value).status, 0);
  const std::uint64_t used = disk_used();
  store_client::put_request options;
  options.only = store_protocol::precondition{store_protocol::condition::if_absent, 0};
  EXPECT_EQ(put(*store_, pool_, "k", value, options).status, EEXIST);
  options = {};
  options.crc = 12345;
  EXPECT_EQ(put(*store_, pool_, "k", value, options).status, EBADMSG);
  options = {};
  options.offset = 10;  // a part of it: the rest would have to be in memory
  EXPECT_EQ(put(*store_, pool_, "k", random_value(1000, 2), options).status, EFBIG);
  options = {};
  options.timeout_ms = 200;
  EXPECT_EQ(put(*store_, pool_, "too long for the disk", random_value(60u << 20, 2), options).status, ENOSPC);
  EXPECT_EQ(disk_used(), used);
  EXPECT_TRUE(get(*store_, pool_, "k", kLong) == value);
}

TEST_F(store_streams, AClientThatDisconnectsHalfwayLeavesNothing) {
  {
    const auto value = random_value(kLong, 1);  // outlives the put, which ends with its client
    const auto doomed = store_rig::open(rig_.over_tcp());
    ASSERT_TRUE(doomed->open_pool("p"));
    const auto one = doomed->make_put(pool_, "k", memory_of(value), {});
    doomed->start(one);
    while (disk_used() == 0) doomed->test(one);
    // Closed with frames under way.
  }
  const auto limit = store_client::clock::now() + std::chrono::seconds(10);
  while (rig_.server().engine().stats().sessions > 1 && store_client::clock::now() < limit) std::this_thread::yield();
  // Disk operations of the session may end a moment after it.
  const auto taken_by_values_only = [&] {
    const bool is_present = store_->run(store_->make_plain(opcode::stat, pool_, "k")).status == 0;
    return is_present == (disk_used() != 0);
  };
  while (!taken_by_values_only() && store_client::clock::now() < limit) std::this_thread::yield();
  EXPECT_TRUE(taken_by_values_only());
}

TEST_F(store_streams, AreThereAfterARestart) {
  const auto value = random_value(kLong, 1);
  ASSERT_EQ(put(*store_, pool_, "k", value).status, 0);
  rig_.stop();
  rig_.start();
  EXPECT_TRUE(get(*store_, pool_, "k", kLong) == value);
  EXPECT_GE(store_->reconnects(), 1u);  // one more if a stopping server still takes a connection
}

}  // namespace
}  // namespace pl::store_test
