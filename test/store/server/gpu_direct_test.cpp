// SPDX-License-Identifier: Apache-2.0
// The server moves device memory of its clients by DMA channels of its own (the simulated GPU): values, what it refuses, and
// ends of connections, memory and transfers.
#include <sys/prctl.h>
#include <sys/socket.h>

#include <atomic>
#include <numeric>
#include <set>
#include <thread>

#include "base/env.hpp"
#include "test/store/server/gpu_direct_rig.hpp"
#include "test/store/server/other_process.hpp"

namespace pl::store_test {
namespace {

std::size_t free_device_bytes() {
  std::size_t now = 0, all = 0;
  EXPECT_EQ(test::simulated_cuda().cuMemGetInfo_v2(&now, &all), cu::error_code::success);
  return now;
}

TEST_F(store_gpu_direct, PutsAndGetsOfEverySize) {
  start_and_open();
  EXPECT_EQ(store_->why_no_gpu_direct(), "");
  for (const std::size_t bytes :
       {1u, 2047u, 2048u, 4096u, 16384u, 16385u, 262'144u, 262'145u, (5u << 20) + 3, (21u << 20) + 1}) {
    const test::device_buffer source(bytes), destination(bytes);
    const auto value = test::random_bytes(bytes, bytes);
    test::set_device_bytes(source.pointer(), value);
    const auto answer = put_device("k", source.pointer(), bytes);
    ASSERT_EQ(answer.status, 0) << answer.text;
    EXPECT_EQ(answer.result.way, bytes >= 2048 ? path::gpu_direct : path::unix_socket) << bytes;
    EXPECT_EQ(answer.moved_bytes, bytes);
    EXPECT_EQ(get(*store_, pool_, "k", bytes), value) << bytes;  // as the CPU sees it
    auto verified = one_of_many();                               // the checksum that the server made is that of the bytes
    verified.verify = true;
    const auto got = get_device("k", destination.pointer(), bytes, verified);
    ASSERT_EQ(got.status, 0) << got.text;
    EXPECT_EQ(got.result.way, bytes >= 2048 ? path::gpu_direct : path::unix_socket) << bytes;
    EXPECT_EQ(got.moved_bytes, bytes);
    EXPECT_EQ(test::device_bytes(destination.pointer(), bytes), value) << bytes;
    const auto alone = get_device("k", destination.pointer(), bytes, {});
    EXPECT_EQ(alone.result.way, bytes >= 8u << 20 ? path::gpu_direct
                                : bytes > 16384   ? path::shm_direct
                                                  : path::unix_socket)
        << bytes;
    EXPECT_EQ(test::device_bytes(destination.pointer(), bytes), value) << bytes;
  }
  EXPECT_NE(statistics().find("peerlane_store_gpu_direct{why_not=\"\"} 1"), std::string::npos);
}

TEST_F(store_gpu_direct, ARequiredPathTakesShortValuesToo) {
  start_and_open(path::gpu_direct);
  for (const std::size_t bytes : {1u, 7u, 4096u}) {
    const test::device_buffer source(bytes), destination(bytes);
    const auto value = test::random_bytes(bytes, bytes);
    test::set_device_bytes(source.pointer(), value);
    EXPECT_EQ(put_device("k", source.pointer(), bytes).result.way, path::gpu_direct);
    EXPECT_EQ(get_device("k", destination.pointer(), bytes).result.way, path::gpu_direct);
    EXPECT_EQ(test::device_bytes(destination.pointer(), bytes), value);
  }
  const auto refused = put(*store_, pool_, "host", random_value(100, 1));
  EXPECT_EQ(refused.status, ENOTSUP);
  EXPECT_NE(refused.text.find("gpu-direct was required"), std::string::npos) << refused.text;
}

TEST_F(store_gpu_direct, PartsGoIntoTheMiddleOfABuffer) {
  start_and_open();
  const std::size_t bytes = 2 << 20;
  const test::device_buffer buffer(bytes);
  const auto value = test::random_bytes(bytes, 1);
  ASSERT_EQ(put(*store_, pool_, "k", value).status, 0);
  test::set_device_bytes(buffer.pointer(), bytes_t(bytes, 0xcc));
  auto part = one_of_many();
  part.offset = 12345;
  const auto got = get_device("k", buffer.pointer() + 777, 1'000'000, part);
  ASSERT_EQ(got.status, 0) << got.text;
  EXPECT_EQ(got.result.way, path::gpu_direct);
  auto expected = bytes_t(bytes, 0xcc);
  std::copy_n(value.begin() + 12345, 1'000'000, expected.begin() + 777);
  EXPECT_EQ(test::device_bytes(buffer.pointer(), bytes), expected);
  part.offset = bytes - 100;  // less than there is room for
  EXPECT_EQ(get_device("k", buffer.pointer(), 1'000'000, part).moved_bytes, 100u);
  part.offset = bytes + 1;
  EXPECT_EQ(get_device("k", buffer.pointer(), 1'000'000, part).status, EINVAL);
  EXPECT_EQ(get_device("none", buffer.pointer(), 1'000'000).status, ENOENT);
}

TEST_F(store_gpu_direct, AWritersChecksumIsHeldAgainstTheBytes) {
  start_and_open();
  for (const std::size_t bytes : {4096u, 1u << 20}) {
    const test::device_buffer source(bytes);
    test::set_device_bytes(source.pointer(), test::random_bytes(bytes, 1));
    auto request = at_level(durability::durable);
    request.crc = 1;
    EXPECT_EQ(put_device("wrong", source.pointer(), bytes, request).status, EBADMSG) << bytes;
    EXPECT_EQ(get_device("wrong", source.pointer(), bytes).status, ENOENT);
  }
}

TEST_F(store_gpu_direct, ValuesOnDiskComeBack) {
  start_and_open();
  const std::size_t bytes = 12u << 20;
  const test::device_buffer buffer(bytes);
  for (unsigned i = 0; i < 8; ++i) {  // more than the memory tier
    test::set_device_bytes(buffer.pointer(), test::random_bytes(bytes, i));
    const auto done = put_device("k" + std::to_string(i), buffer.pointer(), bytes);
    ASSERT_EQ(done.status, 0) << i << done.text;
  }
  for (unsigned i = 0; i < 8; ++i) {
    const auto got = get_device("k" + std::to_string(i), buffer.pointer(), bytes);
    ASSERT_EQ(got.status, 0) << i << got.text;
    EXPECT_EQ(test::device_bytes(buffer.pointer(), bytes), test::random_bytes(bytes, i));
  }
}

// Such values lie in memory that is not pinned.
TEST_F(store_gpu_direct, PoolsOfTheServersOwnMemoryGoByTheSocket) {
  start_and_open();
  const std::size_t bytes = 1 << 20;
  const test::device_buffer buffer(bytes), other(bytes);
  const auto value = test::random_bytes(bytes, 1);
  test::set_device_bytes(buffer.pointer(), value);
  store_protocol::pool_settings apart;
  apart.allow_shm = false;
  pool_ = make_pool(*store_, "apart", apart);
  for (const auto level : {durability::volatile_, durability::durable}) {
    const auto done = put_device("k", buffer.pointer(), bytes, at_level(level));
    ASSERT_EQ(done.status, 0) << done.text;
    EXPECT_EQ(done.result.way, path::unix_socket);
    const auto got = get_device("k", other.pointer(), bytes);
    ASSERT_EQ(got.status, 0) << got.text;
    EXPECT_EQ(got.result.way, path::unix_socket);
    EXPECT_EQ(test::device_bytes(other.pointer(), bytes), value);
  }
}

// ---- Ends

TEST_F(store_gpu_direct, FreedMemoryGoesBackToTheGpu) {
  start_and_open();
  {  // what the first use opens stays
    const test::device_buffer first(1 << 20);
    ASSERT_EQ(put_device("k", first.pointer(), first.bytes()).result.way, path::gpu_direct);
  }
  const std::size_t before = free_device_bytes();
  {
    const test::device_buffer buffer(64u << 20);
    ASSERT_EQ(put_device("k", buffer.pointer(), 1 << 20).result.way, path::gpu_direct);
    EXPECT_LT(free_device_bytes(), before);
  }
  EXPECT_TRUE(soon([&] { return free_device_bytes() >= before; })) << "the store keeps it";
}

TEST_F(store_gpu_direct, MemoryAllocatedAnewIsNotTheOldOne) {
  start_and_open();
  const std::size_t bytes = 4u << 20;
  for (unsigned round = 0; round < 20; ++round) {
    const test::device_buffer buffer(bytes);
    const auto value = test::random_bytes(bytes, round);
    test::set_device_bytes(buffer.pointer(), value);
    const auto done = put_device("k", buffer.pointer(), bytes);
    ASSERT_EQ(done.status, 0) << done.text;
    ASSERT_EQ(get(*store_, pool_, "k", bytes), value) << round;
  }
}

TEST_F(store_gpu_direct, ABrokenConnectionHandsMemoryOverAgain) {
  start_and_open();
  const std::size_t bytes = 8u << 20;
  const test::device_buffer buffer(bytes), other(bytes);
  for (unsigned round = 0; round < 10; ++round) {
    const auto value = test::random_bytes(bytes, round);
    test::set_device_bytes(buffer.pointer(), value);
    const auto one = store_->make_put(pool_, "k", device(buffer.pointer(), bytes), at_level(durability::volatile_));
    const auto two = store_->make_get(pool_, "k", device(other.pointer(), bytes), {});
    store_->start(one);
    store_->break_connection();  // in the middle of it, or before the store has it
    ASSERT_TRUE(store_->wait(one));
    ASSERT_EQ(one->got.status, 0) << one->got.text;
    store_->start(two);  // made before the connection broke
    ASSERT_TRUE(store_->wait(two));
    ASSERT_EQ(two->got.status, 0) << two->got.text;
    ASSERT_EQ(test::device_bytes(other.pointer(), bytes), value);
  }
  EXPECT_EQ(put_device("k", buffer.pointer(), bytes).result.way, path::gpu_direct);
  EXPECT_GE(store_->reconnects(), 10u);
}

// The value is whole or not there, and the server stops in time.
TEST_F(store_gpu_direct, AClientThatVanishesLeavesNoHalfValue) {
  start_and_open();
  const std::size_t bytes = 20u << 20;
  const test::device_buffer buffer(bytes);
  const auto value = test::random_bytes(bytes, 3);
  test::set_device_bytes(buffer.pointer(), value);
  for (unsigned round = 0; round < 5; ++round) {
    auto gone = store_rig::open(options());
    ASSERT_NE(gone, nullptr);
    const auto pool = gone->open_pool("p");
    ASSERT_TRUE(pool);
    gone->start(gone->make_put(*pool, "k" + std::to_string(round), device(buffer.pointer(), bytes), {}));
    std::this_thread::sleep_for(std::chrono::microseconds(200 * round));
    gone.reset();
    store_client::reply found;
    bytes_t room(bytes);
    found = store_->run(store_->make_get(pool_, "k" + std::to_string(round), memory_of(room), {}));
    ASSERT_TRUE(found.status == ENOENT || (found.status == 0 && room == value)) << found.status << found.text;
  }
}

constexpr std::size_t kMovedBytes = 20u << 20, kItemBytes = 40u << 10;

// Two puts and a get at a time, and batches, all moved by the store, of memory of this process.
TEST(store_gpu_direct_helper, DISABLED_MovesUntilKilled) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const test::current_device current(0);
  const auto copies = copy::planner::open(test::simulated_cuda(), copy::planner::options_from_environment());
  ASSERT_TRUE(copies) << copies.error().message;
  store_client::client_options options;
  options.server.socket = env_read("PEERLANE_STORE").text + "/store.sock";
  options.copies = copies->get();
  options.cuda = &test::simulated_cuda();
  options.require = path::gpu_direct;
  const auto store = store_rig::open(options);
  ASSERT_NE(store, nullptr);
  const auto pool = store->open_pool("p");
  const test::device_buffer source(kMovedBytes), target(kMovedBytes);
  test::set_device_bytes(source.pointer(), test::random_bytes(kMovedBytes, 9));
  const auto given = store->classify(source.pointer(), kMovedBytes), wanted = store->classify(target.pointer(), kMovedBytes);
  store_client::get_request whole;
  whole.is_one_of_many = true;
  std::vector<std::string> keys(kMovedBytes / kItemBytes);
  std::vector<store_client::batch_entry> batch(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    keys[i] = "item" + std::to_string(i);
    batch[i].key = keys[i];
    batch[i].level = durability::volatile_;
    batch[i].buffer = *store->classify(source.pointer() + i * kItemBytes, kItemBytes);
  }
  for (;;) {
    const std::vector moved{store->make_put(*pool, "theirs", *given, at_level(durability::volatile_)),
                            store->make_put(*pool, "other", *given, at_level(durability::volatile_)),
                            store->make_get(*pool, "ours", *wanted, whole)};
    store->start(moved);
    for (const auto& one : moved) store->wait(one);
    for (const auto op : {opcode::batch_put, opcode::batch_get}) store->run_batch(op, *pool, batch);
  }
}

// Its memory is copied to and from when it dies. Nothing of it stays: no grant, no pin, no share of what its principal may
// hand over (which is what two such clients need), and what it put is whole.
TEST_F(store_gpu_direct, AClientKilledInTheMiddleOfACopyLeavesNothing) {
  rig_.config.arena_bytes = 256u << 20;
  rig_.config.max_principal_device_bytes = 3 * kMovedBytes;
  start_and_open();
  const auto value = test::random_bytes(kMovedBytes, 3);
  ASSERT_EQ(put(*store_, pool_, "ours", value, at_level(durability::volatile_)).status, 0);
  const auto& engine = rig_.server().engine();
  for (unsigned round = 0; round < 6; ++round) {
    const auto puts_before = engine.stats().puts;
    other_process client("store_gpu_direct_helper.DISABLED_MovesUntilKilled", rig_.config.data);
    ASSERT_TRUE(soon([&] { return engine.stats().puts > puts_before + 1 && engine.stats().grants > 0; }, 60)) << round;
    std::this_thread::sleep_for(std::chrono::milliseconds(2 * round));
    client.end(SIGKILL);
    EXPECT_TRUE(soon([&] { return engine.stats().grants == 0 && engine.stats().pins == 0; })) << round;
    EXPECT_EQ(get(*store_, pool_, "ours", kMovedBytes), value);
    EXPECT_EQ(get(*store_, pool_, "theirs", kMovedBytes), test::random_bytes(kMovedBytes, 9)) << round;
  }
  const test::device_buffer all(3 * kMovedBytes);
  EXPECT_EQ(put_device("k", all.pointer(), 1 << 20).result.way, path::gpu_direct) << "its share came back";
}

// ---- What is refused

TEST_F(store_gpu_direct, LimitsSendMemoryAnotherWay) {
  rig_.config.max_principal_device_memories = 1;
  start_and_open();
  const std::size_t bytes = 4 << 20;  // smaller ones may share a memory object
  const test::device_buffer one(bytes), two(bytes);
  EXPECT_EQ(put_device("k", one.pointer(), bytes).result.way, path::gpu_direct);
  EXPECT_EQ(put_device("k2", two.pointer(), bytes).result.way, path::gpu_direct) << "in the place of the first";
  // It counts over all connections of the principal.
  auto second = store_rig::open(options());
  const auto pool = second->open_pool("p");
  const auto other = second->run(second->make_put(*pool, "k", device(one.pointer(), bytes), {}));
  EXPECT_EQ(other.status, 0) << other.text;
  EXPECT_EQ(other.result.way, path::shm_direct);
  store_.reset();
  EXPECT_TRUE(soon([&] {
    return second->run(second->make_put(*pool, "k", *second->classify(one.pointer(), bytes), {})).result.way ==
           path::gpu_direct;
  })) << "what the other connection held is free";
}

TEST_F(store_gpu_direct, BytesAreLimitedToo) {
  rig_.config.max_principal_device_bytes = 4u << 20;
  start_and_open();
  const test::device_buffer small(2u << 20), large(8u << 20);
  EXPECT_EQ(put_device("k", large.pointer(), 1 << 20).result.way, path::shm_direct);
  EXPECT_EQ(put_device("k", small.pointer(), 1 << 20).result.way, path::gpu_direct);
}

TEST_F(store_gpu_direct, ReportsWhyItIsNotUsed) {
  rig_.config.gpu_direct = false;
  start_and_open();
  const test::device_buffer buffer(1 << 20);
  EXPECT_EQ(put_device("k", buffer.pointer(), buffer.bytes()).result.way, path::shm_direct);
  EXPECT_NE(store_->why_no_gpu_direct().find("is off"), std::string::npos) << store_->why_no_gpu_direct();
  EXPECT_NE(statistics().find("peerlane_store_gpu_direct{why_not=\"the store's"), std::string::npos);
  auto refusing = options();
  refusing.gpu_direct = false;
  EXPECT_NE(store_rig::open(refusing)->why_no_gpu_direct().find("PEERLANE_STORE_GPU_DIRECT"), std::string::npos);
}

TEST_F(store_gpu_direct_raw, MemoryOfAnotherConnectionCannotBeNamed) {
  const std::uint64_t bytes = 32 << 10;
  for (const auto op : {opcode::put, opcode::get}) {
    const std::string key = op == opcode::put ? "stolen" : "value";
    EXPECT_EQ(ask(op, key, device_part{1, 0, 1, 0}, bytes), ENOTSUP) << "the other client's first one";
    EXPECT_EQ(ask(op, key, std::nullopt, bytes), EPROTO);
  }
  EXPECT_FALSE(is_there("stolen"));
}

TEST_F(store_gpu_direct_raw, BoundsAreChecked) {
  const auto number = link_->import(region());
  ASSERT_TRUE(number) << number.error().message;
  const std::uint64_t size = buffer_.bytes(), bytes = 32 << 10;
  const auto outcome = [&](opcode op, std::uint64_t offset, std::uint64_t length, std::uint16_t flags = 0,
                           std::optional<std::uint32_t> slot = {}) {
    auto part = *link_->take_slot();
    part.memory = *number;
    part.offset = offset;
    if (slot) part.slot = *slot;
    return ask(op, op == opcode::put ? "new" : "value", part, length, flags);
  };
  for (const auto op : {opcode::put, opcode::get}) {
    EXPECT_EQ(outcome(op, size - bytes + 1, bytes), EINVAL);
    EXPECT_EQ(outcome(op, size, bytes), EINVAL);
    EXPECT_EQ(outcome(op, UINT64_MAX - 4095, bytes), EINVAL);
    EXPECT_EQ(outcome(op, 0, bytes, 0, store_protocol::kDeviceSlots), EINVAL);
    EXPECT_EQ(outcome(op, 0, bytes, 0, UINT32_MAX), EINVAL);
  }
  EXPECT_EQ(outcome(opcode::put, 0, size + 1), EINVAL);
  EXPECT_EQ(outcome(opcode::put, 0, 0), EINVAL);
  EXPECT_EQ(outcome(opcode::put, 0, bytes, store_protocol::flag::patch), EINVAL);
  EXPECT_EQ(outcome(opcode::put, 0, bytes, store_protocol::flag::streamed), EINVAL);
  EXPECT_FALSE(is_there("new"));
  EXPECT_EQ(outcome(opcode::put, size - bytes, bytes), 0);
  EXPECT_EQ(outcome(opcode::get, size - bytes, bytes), 0);
  link_->release(*number);
  EXPECT_TRUE(soon([&] { return outcome(opcode::get, 0, bytes) == ENOTSUP; })) << "given back";
}

// The word stands between a client that gives up and a server that has not begun.
TEST_F(store_gpu_direct_raw, MemoryThatWasTakenBackIsNotTouched) {
  const auto number = link_->import(region());
  ASSERT_TRUE(number);
  test::set_device_bytes(buffer_.pointer(), bytes_t(buffer_.bytes(), 0xcc));
  for (const auto op : {opcode::get, opcode::put}) {
    auto part = *link_->take_slot();
    part.memory = *number;
    ASSERT_TRUE(link_->settle(part)) << "the server does not know of it yet";
    EXPECT_EQ(ask(op, op == opcode::put ? "late" : "value", part, 32 << 10), ECANCELED);
    auto reused = part;  // the word is another transfer's now
    reused.ticket += 1;
    EXPECT_EQ(ask(op, op == opcode::put ? "late" : "value", reused, 32 << 10), ECANCELED);
  }
  EXPECT_FALSE(is_there("late"));
  EXPECT_EQ(test::device_bytes(buffer_.pointer(), buffer_.bytes()), bytes_t(buffer_.bytes(), 0xcc));
}

TEST_F(store_gpu_direct_raw, WhatIsNoMemoryIsRefused) {
  auto wrong = region();
  wrong.size_bytes = 1u << 30;
  EXPECT_EQ(link_->import(wrong).code(), EINVAL);
  auto elsewhere = region();
  elsewhere.gpu.bus ^= 0x40;
  EXPECT_NE(link_->import(elsewhere).code(), 0);
  auto host = dma::shared_host::make(4096);
  EXPECT_EQ(link_->import(*host->share()).code(), ENODEV) << "of no GPU";
  EXPECT_TRUE(link_->import(region())) << "the link goes on";
  // Garbage ends the link and nothing else.
  const int raw = dup(link_fd_);
  EXPECT_TRUE(soon([&] { return send(raw, "garbage", 7, MSG_NOSIGNAL) < 0 && errno == EPIPE; }));
  close(raw);
  EXPECT_EQ(link_->import(region()).code(), EPIPE);
  EXPECT_EQ(ask(opcode::get, "value", device_part{1, 0, 1, 0}, 32 << 10), ENOTSUP);
  store_protocol::head ping;
  ping.request_id = 99;
  peer_->ask(ping, "");
  const auto pong = peer_->answer();
  EXPECT_TRUE(pong && pong->status == 0);
}

class store_gpu_direct_limited : public store_gpu_direct_raw {
 protected:
  store_gpu_direct_limited() { rig_.config.max_principal_device_memories = 4; }
};

// Importing takes a while, in which the principal's other connections hand over memory too.
TEST_F(store_gpu_direct_limited, ConnectionsThatHandOverAtOnceHaveALimitTogether) {
  struct other_client {
    std::unique_ptr<raw_peer> peer;
    std::shared_ptr<device_link> link;
    unique_fd socket;
    dma::shared_region region;
  };
  std::vector<other_client> others(12);
  for (other_client& one : others) {
    int fd = -1;
    one.peer = std::make_unique<raw_peer>(rig_.over_unix(), pool_, "p", false, &fd);
    one.socket = unique_fd(real_device_io(), dup(fd));
    one.link = *device_link::open(fd, 5000);
    one.region = region();
  }
  for (const other_client& one : others) ASSERT_TRUE(dma::send_region(one.socket.get(), one.region));
  unsigned taken = 0;
  for (const other_client& one : others) {
    store_protocol::device_reply said;
    ASSERT_EQ(recv(one.socket.get(), &said, sizeof said, 0), static_cast<ssize_t>(sizeof said));
    ASSERT_TRUE(said.status == 0 || said.status == ENOSPC) << said.text;
    taken += said.status == 0 ? 1 : 0;
  }
  EXPECT_LE(taken, 3u) << "the fixture's client has one";
  EXPECT_GT(taken, 0u);
  others.clear();
  EXPECT_TRUE(soon([&] { return link_->import(region()).code() == 0; })) << "what was refused does not count";
}

// ---- The words

TEST(store_device_slots, SettleSaysWhoseTheMemoryIs) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  auto words = std::move(*dma::shared_host::make(store_protocol::kDeviceSlotBytes));
  ASSERT_TRUE(dma::send_region(ends[1], *words.share()));
  const auto link = *device_link::open(ends[0], 1000);
  const store_protocol::device_slots server(words.data());

  const auto first = *link->take_slot();
  EXPECT_TRUE(link->settle(first));
  EXPECT_FALSE(server.claim(first.slot, first.ticket)) << "taken back";
  const auto second = *link->take_slot();
  EXPECT_NE(second.slot, first.slot);
  ASSERT_TRUE(server.claim(second.slot, second.ticket));
  EXPECT_FALSE(server.claim(second.slot, second.ticket)) << "once";
  std::atomic<bool> has_ended{false};
  std::thread copying([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    has_ended = true;
    server.end(second.slot, second.ticket);
  });
  EXPECT_TRUE(link->settle(second));
  EXPECT_TRUE(has_ended) << "a transfer that has begun is waited for";
  copying.join();
  link->give_slot(second);
  const auto third = *link->take_slot();
  EXPECT_EQ(third.slot, second.slot);
  EXPECT_FALSE(server.claim(second.slot, second.ticket)) << "an old request for the same slot";
  ASSERT_TRUE(server.claim(third.slot, third.ticket));
  close(ends[1]);
  EXPECT_TRUE(link->settle(third)) << "a server that is gone moves nothing";
  for (std::size_t i = 2; i < store_protocol::kDeviceSlots; ++i) EXPECT_TRUE(link->take_slot());
  EXPECT_FALSE(link->take_slot());
}

// A store that is stopped takes nothing: who frees memory does not wait for it, and it hears of all once it goes on.
TEST(store_device_link, ReleasesDoNotWaitForAStoppedStore) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  auto words = dma::shared_host::make(store_protocol::kDeviceSlotBytes);
  ASSERT_TRUE(words);
  ASSERT_TRUE(dma::send_region(ends[1], *words->share()));
  auto link = *device_link::open(ends[0], 1000);
  constexpr std::uint32_t kCount = 5000;
  std::atomic<bool> is_done{false};
  std::thread releasing([&] {
    for (std::uint32_t number = 1; number < kCount; ++number) link->release(number);
    is_done = true;
  });
  EXPECT_TRUE(soon([&] { return is_done.load(); }, 5));
  std::set<std::uint32_t> heard;
  const auto hear_all = [&] {
    store_protocol::device_release note;
    while (recv(ends[1], &note, sizeof note, MSG_DONTWAIT) == sizeof note) heard.insert(note.memory);
  };
  while (!is_done) hear_all();
  releasing.join();
  for (std::uint32_t i = 0; i < kCount && heard.size() < kCount; ++i) {
    hear_all();
    link->release(kCount);
  }
  hear_all();
  EXPECT_EQ(heard.size(), kCount);
  close(ends[1]);
}

}  // namespace
}  // namespace pl::store_test
