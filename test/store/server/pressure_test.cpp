// SPDX-License-Identifier: Apache-2.0
// Clients whose requests are small and whose answers, pins and log lines are not.
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <deque>
#include <fstream>
#include <thread>

#include "test/store/server/raw_peer.hpp"

namespace pl::store_test {
namespace {

using store_protocol::durability;
using store_protocol::opcode;
using clock_type = std::chrono::steady_clock;

void put_long_keys(store_client::client& store, std::uint32_t pool, unsigned count) {
  std::vector<store_client::operation_ptr> all;
  const bytes_t value{1};
  for (unsigned i = 0; i < count; ++i) {
    std::string key = std::to_string(i);
    key.insert(0, store_protocol::kMaxKeyBytes - key.size(), 'k');
    all.push_back(store.make_put(pool, key, memory_of(value), at_level(durability::logged)));
    store.start(all.back());
    if (all.size() < 200 && i + 1 < count) continue;
    for (const auto& one : all) {
      ASSERT_TRUE(store.wait(one));
      ASSERT_EQ(one->got.status, 0) << one->got.text;
    }
    all.clear();
  }
}

void ask_find(raw_peer& client, std::uint32_t pool, std::uint64_t id, const std::string& regex, std::uint64_t limit = 0) {
  store_protocol::head header;
  header.op = opcode::find;
  header.value_bytes = limit;
  header.pool_id = pool;
  header.request_id = id;
  store_protocol::tail fields;
  if (!regex.empty()) fields.regex = regex;
  client.ask(header, "", fields);
}

// A thousand searches are asked for in one packet, and none of their pages is taken.
TEST(store_pressure, UnreadPagesAreBounded) {
  store_rig rig;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  put_long_keys(*store, pool, 1000);
  raw_peer client(rig.over_tcp(), pool, "p");
  const std::uint64_t before = resident_bytes();
  for (unsigned i = 0; i < 150; ++i) ask_find(client, pool, i, "");
  // What the store does not do yet waits in the socket: once nothing changes, all was made that will be.
  std::uint64_t now = resident_bytes(), last = 0, most = now;
  constexpr std::uint64_t kStillBytes = 1u << 20;  // sanitizers and the index never rest altogether
  for (int quiet = 0, polls = 0; quiet < 10 && polls < 200; ++polls) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    last = std::exchange(now, resident_bytes());
    most = std::max(most, now);
    quiet = std::max(now, last) - std::min(now, last) < kStillBytes ? quiet + 1 : 0;
    ASSERT_LT(most - before, 500u << 20) << "pages pile up";
  }
#if !defined(__SANITIZE_ADDRESS__)  // it keeps what was freed
  EXPECT_LT(most - std::min(before, most), 100u << 20);
#endif
  EXPECT_EQ(put(*store, pool, "k", {1}).status, 0);
  // Each of them is answered.
  for (unsigned i = 0; i < 150; ++i) {
    const auto page = client.answer(30'000);
    ASSERT_TRUE(page) << i;
    ASSERT_EQ(page->status, 0) << client.text();
  }
}

// Searches of a client that has left are not made, so they keep neither other clients nor the store's end waiting.
TEST(store_pressure, SearchesEndWithTheirClient) {
  store_rig rig;
  rig.config.metrics = "127.0.0.1:0";
  rig.start();
  auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  put_long_keys(*store, pool, 6000);
  for (int turn = 0; turn < 4; ++turn) {
    std::vector<std::unique_ptr<raw_peer>> many;
    for (int i = 0; i < 10; ++i) {
      auto& one = *many.emplace_back(std::make_unique<raw_peer>(rig.over_tcp(), pool, "p"));
      for (unsigned k = 0; k < 100; ++k) ask_find(one, pool, k, "x$", 1);  // looks at all keys and finds none
    }
  }
  const auto began = clock_type::now();
  // Nothing else fails here: those that stood in the queue were called off.
  EXPECT_TRUE(soon([&] {
    return scraped_number(scraped(rig.server().metrics_endpoint()), "peerlane_store_failed_total{op=\"find\"}") > 1000;
  }));
  EXPECT_TRUE(store->create_pool("another", {}));
  EXPECT_LT(clock_type::now() - began, std::chrono::seconds(20));
  store.reset();
  rig.stop();
  EXPECT_LT(clock_type::now() - began, std::chrono::seconds(30));
}

// Searches that one principal has queued over many connections do not delay the creation of pools, its own included.
TEST(store_pressure, QueuedSearchesDoNotBlockPoolCreation) {
  store_rig rig;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  put_long_keys(*store, pool, 6000);
  std::vector<std::unique_ptr<raw_peer>> many;
  for (int i = 0; i < 40; ++i) {
    auto& one = *many.emplace_back(std::make_unique<raw_peer>(rig.over_tcp(), pool, "p"));
    for (unsigned k = 0; k < 500; ++k) ask_find(one, pool, k, "x$", 1);  // looks at all keys and finds none
  }
  const auto began = clock_type::now();
  EXPECT_TRUE(store->create_pool("another", {}));
  const auto other = store_rig::open(rig.over_tcp());  // of the searcher's principal
  EXPECT_TRUE(other->create_pool("its own", {}));
  EXPECT_EQ(store->run(store->make_find(pool, {.prefix = "kk", .regex = {}, .after = {}, .limit = 1})).status, 0);
  EXPECT_LT(clock_type::now() - began, std::chrono::seconds(5));
  many.clear();
}

// The list of many pools with long lists of rights is longer than a frame.
TEST(store_pressure, PoolsAreListedInPages) {
  store_rig rig;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  store_protocol::pool_settings settings;
  settings.access = "*=rw";
  while (settings.access.size() < 8100) settings.access += ",uid:123456789=rw";
  constexpr unsigned kPools = 560;
  for (unsigned i = 0; i < kPools; ++i) make_pool(*store, "pool " + std::to_string(i), settings);
  const auto all = store->list_pools();
  ASSERT_TRUE(all) << all.error().message;
  ASSERT_EQ(all->size(), kPools);
  for (std::size_t i = 1; i < all->size(); ++i) EXPECT_LT((*all)[i - 1].name, (*all)[i].name);
  EXPECT_EQ(all->front().settings.access, settings.access);
  settings.access += std::string(200, ',');
  EXPECT_EQ(store->create_pool("too long", settings).code(), EINVAL);
}

// A store of an earlier release may hold settings that no answer has room for: that is an error, not a silence.
TEST(store_pressure, AnAnswerThatFitsNoFrameIsAnError) {
  store_rig rig;
  rig.start();
  store::pool_options old;
  old.tags = "shm=1;cache=0;copies=1;access=";
  while (old.tags.size() < 16'300) old.tags += "uid:123456789=rw,";
  ASSERT_TRUE(rig.server().engine().create_pool("old", old));
  auto options = rig.over_unix();
  options.timeout_ms = 5000;
  const auto store = store_rig::open(options);
  EXPECT_EQ(store->open_pool("old").code(), EMSGSIZE);
  EXPECT_TRUE(store->create_pool("new", {}));
}

// Values without bytes are pinned and granted for nothing, and each pin and grant is a record in the server.
TEST(store_pressure, SmallPinsAndGrantsCountToo) {
  store_rig rig;
  rig.config.arena_bytes = 16u << 20;
  rig.config.chunk_bytes = 16u << 20;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  ASSERT_EQ(put(*store, pool, "k", {1}, at_level(durability::volatile_)).status, 0);
  raw_peer client(rig.over_unix(), pool, "p", true);
  for (const opcode op : {opcode::lookup, opcode::alloc}) {
    unsigned given = 0;
    for (unsigned i = 0; i < 100'000; ++i) {
      store_protocol::head header;
      header.op = op;
      header.pool_id = pool;
      header.request_id = i;
      header.value_bytes = op == opcode::alloc ? 1 : 100;
      header.deadline_us = 1;
      client.ask(header, "k");
      const auto got = client.answer();
      ASSERT_TRUE(got) << i;
      if (got->status != 0) {
        EXPECT_TRUE(got->status == ENOTSUP || got->status == ENOSPC) << client.text();
        break;
      }
      ++given;
    }
    if (op == opcode::lookup) { EXPECT_GT(given, 1000u); }
    EXPECT_LT(given, 4096u) << store_protocol::name_of(op);
  }
  EXPECT_LT(rig.server().engine().stats().pins, 4096u);
  // Another principal has room.
  const auto other = store_rig::open(rig.over_tcp());
  ASSERT_TRUE(other->open_pool("p"));
  auto options = at_level(durability::volatile_);
  options.timeout_ms = 2000;
  EXPECT_EQ(put(*other, pool, "other", random_value(100'000, 1), options).status, 0);
}

// All of a principal's gets are let in while it holds nothing yet, and then their values come from disk.
TEST(store_pressure, UnreadValuesDoNotFillTheMemoryTier) {
  store_rig rig;
  rig.config.arena_bytes = 16u << 20;
  rig.config.chunk_bytes = 16u << 20;
  rig.config.max_principal_memory_percent = 50;
  rig.start();
  {
    const auto store = store_rig::open(rig.over_unix());
    const auto pool = make_pool(*store, "p");
    for (unsigned i = 0; i < 30; ++i)
      ASSERT_EQ(put(*store, pool, "k" + std::to_string(i), random_value(1 << 20, i)).status, 0);
  }
  rig.stop();
  rig.start();  // nothing is in memory now
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = store->open_pool("p");
  ASSERT_TRUE(pool);
  raw_peer client(rig.over_tcp(), *pool, "p");
  for (unsigned i = 0; i < 30; ++i) {
    store_protocol::head header;
    header.op = opcode::get;
    header.pool_id = *pool;
    header.request_id = i;
    header.value_bytes = 1 << 20;
    client.ask(header, "k" + std::to_string(i));
  }
  ASSERT_TRUE(soon([&] { return rig.server().engine().stats().misses >= 8; }));
  auto options = at_level(durability::volatile_);
  options.timeout_ms = 10'000;
  const auto value = random_value(1u << 20, 1);  // as large as what is pinned, which may lie anywhere
  for (int turn = 0; turn < 20; ++turn) {
    const auto done = put(*store, *pool, "k", value, options);
    ASSERT_EQ(done.status, 0) << done.text << ", turn " << turn;
    ASSERT_EQ(store->run(store->make_erase(*pool, "k", {})).status, 0);
    ASSERT_LE(rig.server().engine().stats().pins, 14u);  // what it may hold, and what is being read (28 before)
  }
}

// All clients of plain TCP are one principal. Their gets occupy all of its share, and follow each other without a pause.
TEST(store_pressure, GetsThatFollowEachOtherLeaveRoomForPuts) {
  store_rig rig;
  rig.config.arena_bytes = 16u << 20;
  rig.config.chunk_bytes = 16u << 20;
  rig.start();
  const auto store = store_rig::open(rig.over_tcp());
  const auto pool = make_pool(*store, "p");
  const auto options = [] {
    auto out = at_level(durability::volatile_);
    out.timeout_ms = 10'000;
    return out;
  }();
  const auto value = random_value(1u << 20, 1);
  ASSERT_EQ(put(*store, pool, "k", value, options).status, 0);
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> gets{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 8; ++i)
    readers.emplace_back([&] {
      const auto mine = store_rig::open(rig.over_tcp());
      const auto same = mine->open_pool("p");
      ASSERT_TRUE(same);
      std::vector<bytes_t> rooms(4, bytes_t(value.size()));
      std::deque<store_client::operation_ptr> all;
      for (std::size_t turn = 0; !stop; ++turn) {
        all.push_back(mine->make_get(*same, "k", memory_of(rooms[turn % rooms.size()]), {}));
        mine->start(all.back());
        if (all.size() < rooms.size()) continue;
        mine->wait(all.front());
        EXPECT_EQ(all.front()->got.status, 0) << all.front()->got.text;
        all.pop_front();
        ++gets;
      }
      for (const auto& one : all) mine->wait(one);
    });
  EXPECT_TRUE(soon([&] { return gets > 50; }));
  const auto longer = random_value(4u << 20, 2);  // a third of the share
  for (int turn = 0; turn < 5; ++turn) {
    const auto done = put(*store, pool, "other", longer, options);
    EXPECT_EQ(done.status, 0) << done.text << ", turn " << turn;
    if (done.status != 0) break;
  }
  stop = true;
  for (auto& one : readers) one.join();
}

// Whoever can connect can cause a warning with each request.
TEST(store_pressure, WarningsDoNotFillTheDisk) {
  store_rig rig;
  rig.config.log_level = "warn";
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  store_protocol::pool_settings settings;
  settings.access = "uid:4294967294=r";
  const auto pool = make_pool(*store, "p", settings);
  raw_peer client(rig.over_tcp(), pool, "p");
  constexpr unsigned kRefused = 20'000;
  constexpr std::size_t kMaxWarnings = 200;  // as in event_log.hpp
  const auto began = clock_type::now();
  for (unsigned i = 0; i < kRefused; ++i) {
    store_protocol::head header;
    header.op = opcode::pool_delete;
    header.request_id = i;
    client.ask(header, "no such pool");
    const auto got = client.answer();
    ASSERT_TRUE(got) << i;
    ASSERT_NE(got->status, 0);
  }
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(clock_type::now() - began).count();
  std::ifstream log(rig.directory() + "/log");
  std::size_t lines = 0;
  for (std::string line; std::getline(log, line);) ++lines;
  EXPECT_GT(lines, 100u);
  EXPECT_LE(lines, static_cast<std::size_t>(seconds + 2) * (kMaxWarnings + 1));
}

// A store that is stopped takes no connection, and its queue fills.
TEST(store_pressure, AConnectionToAFullQueueEndsInTime) {
  store_rig rig;
  const std::string path = rig.directory() + "/full";
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un endpoint{};
  endpoint.sun_family = AF_UNIX;
  std::strcpy(endpoint.sun_path, path.c_str());
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&endpoint), sizeof endpoint), 0);
  ASSERT_EQ(::listen(listener, 0), 0);
  std::vector<int> waiting;
  int code = 0;
  while (waiting.size() < 100 && code == 0) {
    waiting.push_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    code = ::connect(waiting.back(), reinterpret_cast<sockaddr*>(&endpoint), sizeof endpoint) == 0 ? 0 : errno;
  }
  ASSERT_EQ(code, EAGAIN);
  store_client::client_options options;
  options.server.socket = path;
  const auto began = clock_type::now();
  std::atomic<bool> ended{false};
  std::thread unblock([&] {  // so that a call that waits for ever fails this test instead
    for (int i = 0; i < 1000 && !ended; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ::close(listener);
  });
  EXPECT_EQ(store_client::connect(options.server, 300).code(), ETIMEDOUT);
  EXPECT_LT(clock_type::now() - began, std::chrono::seconds(8));
  // A server does not take its place either, and does not wait for it.
  rig.config.socket = path;
  EXPECT_EQ(store_server::server::open(rig.config).code(), EADDRINUSE);
  EXPECT_LT(clock_type::now() - began, std::chrono::seconds(9));
  ended = true;
  unblock.join();
  for (const int one : waiting) ::close(one);
}

}  // namespace
}  // namespace pl::store_test
