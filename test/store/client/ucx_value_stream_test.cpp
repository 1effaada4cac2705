// SPDX-License-Identifier: Apache-2.0
// Two ends of a UCX transport in one process, over whatever UCX finds: what is taken, what is refused, and how it ends.
#include "store/client/ucx_value_stream.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "arch/crc32c.hpp"

namespace pl::store_client {
namespace {

using bytes_t = std::vector<unsigned char>;

bytes_t random_bytes(std::size_t count) {
  bytes_t out(count);
  std::mt19937 random(static_cast<unsigned>(count));
  for (auto& one : out) one = static_cast<unsigned char>(random());
  return out;
}

std::vector<iovec> all_of(bytes_t& bytes) { return {{bytes.data(), bytes.size()}}; }

class ucx_streams : public testing::Test {
 protected:
  void SetUp() override {
    store_ = open(true);
    if (store_ == nullptr) GTEST_SKIP() << reason_;
    client_ = open(false);
    ASSERT_NE(client_, nullptr) << reason_;
    join();
  }
  std::unique_ptr<ucx_value_stream> open(bool is_store) {
    ucx_value_stream::options options;
    options.mode = ucx_mode::on;
    options.is_store = is_store;
    auto made = ucx_value_stream::open(std::move(options));
    if (made) return *std::move(made);
    reason_ = made.error().message;
    return nullptr;
  }
  void join() {
    auto in_store = store_->connect(client_->offer(), kSecret);
    ASSERT_TRUE(in_store) << in_store.error().message;
    in_store_ = *in_store;
    auto in_client = client_->connect(store_->offer(), kSecret);
    ASSERT_TRUE(in_client) << in_client.error().message;
    in_client_ = *in_client;
    EXPECT_FALSE(in_client_->transports.empty());
  }
  template <class Until>
  bool drive(Until is_done, std::chrono::milliseconds most = std::chrono::seconds(20)) {
    const auto end = std::chrono::steady_clock::now() + most;
    while (!is_done() && std::chrono::steady_clock::now() < end) {
      if (store_) store_->progress();
      if (client_) client_->progress();
    }
    return is_done();
  }
  static stream_transfer_ptr transfer(bool is_out, std::vector<iovec> memory, std::uint64_t bytes, std::uint64_t token = 7) {
    auto out = std::make_shared<stream_transfer>();
    out->is_out = is_out;
    out->token = token;
    out->pieces = std::move(memory);
    out->bytes = bytes;
    return out;
  }
  static constexpr std::uint64_t kSecret[2] = {0x1234, 0x5678};
  std::string reason_;
  std::unique_ptr<ucx_value_stream> store_, client_;
  stream_session_ptr in_store_, in_client_;
};

TEST_F(ucx_streams, BytesArriveInPiecesAsTheyWereSent) {
  for (const std::size_t count :
       {std::size_t{1}, std::size_t{4096}, kStreamChunkBytes, kStreamChunkBytes + 1, std::size_t{20} << 20}) {
    auto value = random_bytes(count);
    bytes_t destination(count + 2, 0xee);
    // The store's memory in three pieces that are not next to each other.
    const std::size_t third = count / 3;
    bytes_t apart(count + 100, 0xee);
    std::vector<iovec> pieces{
        {apart.data(), third}, {apart.data() + third + 50, third}, {apart.data() + 2 * third + 100, count - 2 * third}};
    const auto incoming = transfer(false, pieces, count), out = transfer(true, all_of(value), count);
    store_->add(in_store_, incoming);
    client_->add(in_client_, out);
    ASSERT_TRUE(drive([&] { return incoming->moved_bytes == count && out->moved_bytes == count; }))
        << incoming->bad.message << out->bad.message;
    EXPECT_TRUE(incoming->ended_well() && out->ended_well());
    EXPECT_EQ(incoming->crc, arch::crc32c(value.data(), count));
    EXPECT_EQ(out->crc, incoming->crc);
    store_->stop(in_store_, incoming);
    client_->stop(in_client_, out);
    // And back.
    const auto back_in = transfer(false, {{destination.data() + 1, count}}, count, 8),
               back_out = transfer(true, pieces, count, 8);
    client_->add(in_client_, back_in);
    store_->add(in_store_, back_out);
    ASSERT_TRUE(drive([&] { return back_in->moved_bytes == count && back_out->in_flight == 0; })) << back_in->bad.message;
    EXPECT_TRUE(std::equal(value.begin(), value.end(), destination.begin() + 1));
    EXPECT_TRUE(destination.front() == 0xee && destination.back() == 0xee);
    store_->stop(in_store_, back_out);
    client_->stop(in_client_, back_in);
  }
  EXPECT_EQ(store_->refused() + client_->refused(), 0u);
}

TEST_F(ucx_streams, WhatNamesNoTransferOrLeavesItIsRefused) {
  auto value = random_bytes(100'000);
  bytes_t room(100'000, 0xee);
  const auto incoming = transfer(false, all_of(room), room.size());
  store_->add(in_store_, incoming);
  const auto refused = [&](const char* label, const stream_session_ptr& session, const stream_transfer_ptr& out) {
    const auto before = store_->refused();
    client_->add(session, out);
    EXPECT_TRUE(drive([&] { return out->bad.code != 0 && out->in_flight == 0; })) << label;
    EXPECT_GT(store_->refused(), before) << label;
    client_->stop(session, out);
  };
  refused("an unknown token", in_client_, transfer(true, all_of(value), value.size(), 8));
  for (const int half : {0, 1}) {
    auto liar = std::make_shared<stream_session>(*in_client_);
    liar->transfers.clear();
    ++liar->secret[half];
    refused("another secret", liar, transfer(true, all_of(value), value.size()));
  }
  auto longer = random_bytes(100'001);
  refused("more than granted", in_client_, transfer(true, all_of(longer), longer.size()));
  auto skipping = transfer(true, all_of(value), value.size());
  skipping->begun_bytes = 10;
  refused("not where the last one ended", in_client_, skipping);
  const auto other_path = transfer(true, all_of(room), room.size(), 9);
  other_path->begun_bytes = room.size();
  store_->add(in_store_, other_path);
  refused("into what goes out", in_client_, transfer(true, all_of(value), value.size(), 9));
  store_->stop(in_store_, other_path);
  EXPECT_EQ(std::count(room.begin(), room.end(), 0xee), 100'000) << "not a byte of it";
  EXPECT_EQ(incoming->bad.code, 0);
  // The true one still is taken, once.
  const auto right = transfer(true, all_of(value), value.size());
  client_->add(in_client_, right);
  ASSERT_TRUE(drive([&] { return incoming->moved_bytes == value.size() && right->in_flight == 0; }));
  EXPECT_EQ(room, value);
  client_->stop(in_client_, right);
  refused("again", in_client_, transfer(true, all_of(value), value.size()));
}

// Bytes that change while they travel: somebody wrote into them, or the network did.
// UCX ends a process that it gives such an address.
TEST_F(ucx_streams, AMalformedAddressIsRefused) {
  for (const bool breaks_off : {false, true}) {
    auto offer = client_->offer();
    if (breaks_off) offer.address.resize(offer.address.size() / 2);
    else offer.address[0] = static_cast<char>(offer.address[0] | 2);  // a version that is none
    const auto refused = store_->connect(offer, kSecret);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.code(), EBADMSG) << refused.error().message;
  }
  EXPECT_TRUE(store_->connect(open(false)->offer(), kSecret));
}

// By shared memory an end attaches, and reads, what the other's address names.
TEST_F(ucx_streams, UseNoSharedMemory) {
  const std::string all = "," + client_->offer().transports;
  for (const char* const name : {",posix/", ",sysv/", ",cma/", ",xpmem/", ",knem/"})
    EXPECT_EQ(all.find(name), std::string::npos) << all;
}

TEST_F(ucx_streams, DamageIsFound) {
  auto value = random_bytes(kStreamChunkBytes);
  bytes_t room(value.size());
  const auto incoming = transfer(false, all_of(room), room.size()), out = transfer(true, all_of(value), value.size());
  store_->add(in_store_, incoming);
  client_->add(in_client_, out);  // summed now, and read when the other end has answered
  value[5000] ^= 1;
  ASSERT_TRUE(drive([&] { return incoming->begun_bytes == room.size() && incoming->in_flight == 0; }));
  EXPECT_EQ(incoming->bad.code, EBADMSG) << incoming->bad.message;
}

TEST_F(ucx_streams, StagedCopiesSeeEveryByteOnceInOrder) {
  auto value = random_bytes((11u << 20) + 5);
  bytes_t got(value.size());
  const auto out = transfer(true, {}, value.size()), incoming = transfer(false, {}, value.size());
  out->copy = [&](std::uint64_t offset, std::byte* host, std::size_t bytes) -> status {
    std::memcpy(host, value.data() + offset, bytes);
    return {};
  };
  incoming->copy = [&](std::uint64_t offset, std::byte* host, std::size_t bytes) -> status {
    std::memcpy(got.data() + offset, host, bytes);
    return {};
  };
  client_->add(in_client_, incoming);
  store_->add(in_store_, out);
  ASSERT_TRUE(drive([&] { return incoming->moved_bytes == value.size() && out->in_flight == 0; })) << incoming->bad.message;
  EXPECT_EQ(got, value);
  client_->stop(in_client_, incoming);
  // A copy that fails ends the transfer with its error.
  const auto bad = transfer(true, {}, value.size(), 9);
  bad->copy = [](std::uint64_t, std::byte*, std::size_t) -> status { return failure{EIO, "on purpose"}; };
  store_->add(in_store_, bad);
  EXPECT_EQ(bad->bad.code, EIO);
  EXPECT_EQ(bad->in_flight, 0u);
}

TEST_F(ucx_streams, AStoppedTransferEndsWithWhatIsUnderWay) {
  auto value = random_bytes(64u << 20);
  bytes_t room(value.size());
  const auto incoming = transfer(false, all_of(room), room.size()), out = transfer(true, all_of(value), value.size());
  int changes = 0;
  incoming->changed = [&] { ++changes; };
  store_->add(in_store_, incoming);
  client_->add(in_client_, out);
  ASSERT_TRUE(drive([&] { return incoming->moved_bytes > 0; }));
  store_->stop(in_store_, incoming);
  ASSERT_TRUE(drive([&] { return incoming->in_flight == 0 && out->in_flight == 0; }));
  EXPECT_LT(incoming->moved_bytes, room.size());
  EXPECT_EQ(out->bad.code, ECONNABORTED) << "the next chunk was refused";
  EXPECT_GT(changes, 0);
}

// Every user of the UCX transport relies on this: memory is free again some time after the other end has gone, whatever was
// under way.
TEST_F(ucx_streams, AnEndThatGoesLetsTheOtherEndsMemoryGo) {
  for (const bool store_goes : {false, true}) {
    auto value = random_bytes(64u << 20);
    bytes_t room(value.size());
    const auto incoming = transfer(false, all_of(room), room.size()), out = transfer(true, all_of(value), value.size());
    store_->add(in_store_, incoming);
    client_->add(in_client_, out);
    ASSERT_TRUE(drive([&] { return incoming->moved_bytes > 0; }));
    (store_goes ? store_ : client_).reset();
    const auto& stays = store_goes ? client_ : store_;
    stays->close(store_goes ? in_client_ : in_store_);
    const auto& left = store_goes ? out : incoming;
    ASSERT_TRUE(drive([&] { return left->in_flight == 0; })) << "UCX kept the memory";
    EXPECT_EQ(left->bad.code, ECONNABORTED);
    // And a new one can come.
    (store_goes ? store_ : client_) = open(store_goes);
    join();
  }
}

TEST_F(ucx_streams, SleepsUntilSomethingCame) {
  while (!(store_->progress() || client_->progress())) {
    if (store_->arm()) break;
  }
  auto value = random_bytes(1000);
  bytes_t room(1000);
  const auto incoming = transfer(false, all_of(room), room.size()), out = transfer(true, all_of(value), value.size());
  store_->add(in_store_, incoming);
  client_->add(in_client_, out);
  // Each end as its threads do: progress until there is nothing, then poll.
  std::atomic<int> calls{0};
  const auto serve = [&](ucx_value_stream& end) {
    while (end.progress()) {}
    if (!end.arm()) return;
    pollfd one{end.fd(), POLLIN, 0};
    poll(&one, 1, 5);
    ++calls;
  };
  for (int i = 0; i < 2000 && incoming->moved_bytes < 1000; ++i) {
    serve(*store_);
    serve(*client_);
  }
  EXPECT_EQ(room, value);
}

TEST(ucx_mode_names, AreKnown) {
  EXPECT_EQ(ucx_mode_of("auto"), ucx_mode::automatic);
  EXPECT_EQ(ucx_mode_of("on"), ucx_mode::on);
  EXPECT_EQ(ucx_mode_of("off"), ucx_mode::off);
  EXPECT_FALSE(ucx_mode_of("yes"));
  EXPECT_TRUE(has_rdma("tcp/eth0,rc_verbs/mlx5_0:1"));
  EXPECT_TRUE(has_rdma("dc_mlx5/mlx5_0:1"));
  EXPECT_FALSE(has_rdma("tcp/eth0,self/memory0,cma/memory"));
  EXPECT_FALSE(has_rdma(""));
}

TEST(ucx_mode_names, AnotherVersionOfUcxIsNotJoined) {
  ucx_value_stream::options options;
  options.mode = ucx_mode::on;
  auto made = ucx_value_stream::open(std::move(options));
  if (!made) GTEST_SKIP() << made.error().message;
  auto other = (*made)->offer();
  ++other.minor;
  const std::uint64_t secret[2] = {1, 2};
  const auto joined = (*made)->connect(other, secret);
  EXPECT_EQ(joined.code(), ENOTSUP);
  EXPECT_NE(joined.error().message.find("at the other end"), std::string::npos) << joined.error().message;
  other = (*made)->offer();
  other.any_transport = false;  // it was not forced there
  if (!has_rdma(other.transports)) { EXPECT_EQ((*made)->connect(other, secret).code(), ENOTSUP); }
}

}  // namespace
}  // namespace pl::store_client
