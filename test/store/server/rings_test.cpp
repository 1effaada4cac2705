// SPDX-License-Identifier: Apache-2.0
// Connections whose bytes go through shared memory: who gets them, sleep and waking up, ends at any moment, clients that
// lie.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/protocol/byte_channel.hpp"
#include "store/protocol/byte_ring.hpp"
#include "store/protocol/handshake.hpp"
#include "store/server/ring_poller.hpp"
#include "test/store/server/raw_peer.hpp"
#include "test/store/server/store_rig.hpp"

namespace pl::store_test {
namespace {

using store_protocol::durability;
using store_protocol::opcode;
using namespace std::chrono_literals;

class store_rings : public testing::Test {
 protected:
  void SetUp() override {
    rig.config.spin_us = 20;
    rig.start();
  }
  // The server's counter of this name.
  long counted(const std::string& name) {
    const auto asker = store_rig::open(rig.over_tcp());
    const std::string text = asker->run(asker->make_plain(opcode::stats, 0, {})).body;
    const auto found = text.find("\n" + name + " ");
    return found == std::string::npos ? -1 : std::stol(text.substr(found + name.size() + 2));
  }
  // A connection past its handshake, by hand.
  struct stranger {
    std::unique_ptr<store_client::byte_channel> wire;
    store_client::handshake_result hello;
  };
  stranger connect() {
    stranger out;
    auto made = store_client::connect(rig.over_unix().server, 5000);
    EXPECT_TRUE(made);
    out.wire = *std::move(made);
    store_client::handshake_request request;
    request.rings = true;
    const auto hello = store_client::do_handshake(*out.wire, request, 5000);
    EXPECT_TRUE(hello);
    if (hello) out.hello = *hello;
    if (out.hello.arena_fd >= 0) close(out.hello.arena_fd);
    return out;
  }
  store_rig rig;
};

TEST_F(store_rings, AreForClientsOfTheSocketThatMapMemory) {
  const auto with_rings = store_rig::open(rig.over_unix());
  EXPECT_EQ(counted("peerlane_store_rings_total"), 1);
  auto options = rig.over_unix();
  options.use_shm = false;
  const auto without_memory = store_rig::open(options);
  options = rig.over_unix();
  options.use_rings = false;
  const auto plain = store_rig::open(options);
  const auto far = store_rig::open(rig.over_tcp());
  EXPECT_EQ(counted("peerlane_store_rings_total"), 1);
}

// Both ends sleep before each question.
TEST_F(store_rings, WaitersAreWoken) {
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  for (int i = 0; i < 30; ++i) {
    std::this_thread::sleep_for(i % 3 * 1ms);
    const auto value = random_value(100 + static_cast<std::size_t>(i) * 997, 1);
    ASSERT_EQ(put(*store, pool, "k", value, at_level(durability::volatile_)).status, 0);
    EXPECT_EQ(get(*store, pool, "k", value.size()), value);
  }
}

TEST_F(store_rings, MoreConnectionsThanRingsStayWithTheirSockets) {
  std::vector<std::unique_ptr<store_client::client>> all;
  for (std::size_t i = 0; i < store_server::ring_poller::kMaxMembers * store_server::serving_threads(rig.config) + 3; ++i) {
    all.push_back(store_rig::open(rig.over_unix()));
    ASSERT_NE(all.back(), nullptr);
  }
  const auto pool = make_pool(*all[0], "p");
  ASSERT_EQ(put(*all[0], pool, "k", {7}).status, 0);
  for (auto& each : all) {
    ASSERT_TRUE(each->open_pool("p"));
    EXPECT_EQ(get(*each, pool, "k", 1), bytes_t{7});
  }
  const long most = static_cast<long>(store_server::ring_poller::kMaxMembers * store_server::serving_threads(rig.config));
  EXPECT_LE(counted("peerlane_store_rings_total"), most);
  EXPECT_GE(counted("peerlane_store_rings_total"), static_cast<long>(store_server::ring_poller::kMaxMembers));
  // Those that go leave their place.
  all.clear();
  EXPECT_TRUE(soon([&] { return counted("peerlane_store_connections") <= 1; }));
  const long before = counted("peerlane_store_rings_total");
  const auto late = store_rig::open(rig.over_unix());
  EXPECT_EQ(counted("peerlane_store_rings_total"), before + 1);
}

TEST_F(store_rings, AProcessThatIsKilledLeavesNothing) {
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  const long before = counted("peerlane_store_connections");
  for (int round = 0; round < 5; ++round) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      auto mine = store_client::client::open(rig.over_unix());
      const bytes_t value(60'000, 5);
      const bool is_open = mine && (*mine)->open_pool("p");
      if (::write(ready[1], "x", 1) != 1 || !is_open) _exit(1);
      for (;;) (void)(*mine)->run((*mine)->make_put(pool, "c", memory_of(value), at_level(durability::volatile_)));
    }
    char byte = 0;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    std::this_thread::sleep_for(round * 3ms);
    kill(child, SIGKILL);
    int wait_status = 0;
    waitpid(child, &wait_status, 0);
    EXPECT_TRUE(WIFSIGNALED(wait_status));
    close(ready[0]);
    close(ready[1]);
  }
  EXPECT_TRUE(soon([&] { return counted("peerlane_store_connections") == before; }));
  EXPECT_EQ(put(*store, pool, "k", {1}).status, 0);
}

// Questions that were written before the end are still done, as on a socket.
TEST_F(store_rings, WhatWasAskedBeforeTheEndIsDone) {
  const auto store = store_rig::open(rig.over_unix());
  for (int i = 0; i < 20; ++i) {
    auto one = connect();
    ASSERT_GE(one.hello.rings_fd, 0);
    auto wire = store_client::over_rings(std::move(one.wire), one.hello.rings_fd);
    ASSERT_TRUE(wire);
    store_protocol::head head;
    head.op = opcode::pool_create;
    head.request_id = 9;
    std::string frame;
    store_protocol::tail settings;
    settings.settings.emplace();
    ASSERT_TRUE(store_protocol::encode(head, "pool" + std::to_string(i), settings, frame));
    const iovec piece{frame.data(), frame.size()};
    const auto sent = (*wire)->write({&piece, 1});
    ASSERT_TRUE(sent && *sent == frame.size());
    wire->reset();
    EXPECT_TRUE(soon([&] { return store->open_pool("pool" + std::to_string(i)).ok(); }));
  }
}

TEST_F(store_rings, ClientsThatLieAreThrownOut) {
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  for (const std::size_t word : {0u, 40u}) {  // what it has written; what it has read
    auto liar = connect();
    ASSERT_GE(liar.hello.rings_fd, 0);
    auto* const words =
        static_cast<std::uint64_t*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, liar.hello.rings_fd, 0));
    ASSERT_NE(words, MAP_FAILED);
    auto wire = store_client::over_rings(std::move(liar.wire), liar.hello.rings_fd);
    ASSERT_TRUE(wire);
    store_protocol::head head;
    head.op = opcode::ping;
    std::string frame;
    ASSERT_TRUE(store_protocol::encode(head, {}, {}, frame));
    // The position that it reads by is looked at when a ring seems full.
    if (word != 0) std::atomic_ref(words[40]).store(std::uint64_t{1} << 40);
    bool is_over = false;
    for (int i = 0; i < 100'000 && !is_over; ++i) {
      const iovec piece{frame.data(), frame.size()};
      is_over = !(*wire)->write({&piece, 1});
      if (word == 0) std::atomic_ref(words[0]).store(std::uint64_t{1} << 40);
      const char wakeup = 1;
      is_over = is_over || (send((*wire)->fd(), &wakeup, 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno == EPIPE);
      if (i % 1000 == 0) std::this_thread::sleep_for(1ms);
    }
    EXPECT_TRUE(is_over) << "word " << word;
    munmap(words, 4096);
    EXPECT_EQ(put(*store, pool, "k", {1}).status, 0) << "others are served";
  }
}

// A client that takes nothing: its answers fill the ring, and it is let go as one that stalls on a socket is.
TEST_F(store_rings, AClientThatTakesNothingIsLetGo) {
  rig.stop();
  rig.config.stall_timeout_s = 1;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  ASSERT_EQ(put(*store, pool, "k", random_value(60'000, 1)).status, 0);
  auto lazy = connect();
  auto wire = store_client::over_rings(std::move(lazy.wire), lazy.hello.rings_fd);
  ASSERT_TRUE(wire);
  store_protocol::head head;
  head.op = opcode::stats;
  std::string frame;
  for (int i = 0; i < 500; ++i) {
    head.request_id = static_cast<std::uint64_t>(i) + 1;
    ASSERT_TRUE(store_protocol::encode(head, {}, {}, frame));
  }
  const iovec piece{frame.data(), frame.size()};
  const auto sent = (*wire)->write({&piece, 1});
  ASSERT_TRUE(sent && *sent == frame.size());
  EXPECT_TRUE(soon([&] { return counted("peerlane_store_stalled_total") == 1; }));
  EXPECT_EQ(get(*store, pool, "k", 60'000), random_value(60'000, 1));
}

}  // namespace
}  // namespace pl::store_test
