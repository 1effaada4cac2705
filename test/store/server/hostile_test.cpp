// SPDX-License-Identifier: Apache-2.0
// Clients that take what they can get and give nothing back: none of them may keep others from their values.
#include <atomic>
#include <cstdio>
#include <fstream>
#include <functional>

#include "test/store/server/raw_peer.hpp"

namespace pl::store_test {
namespace {

using store_protocol::durability;
using store_protocol::opcode;

TEST(store_hostile, ConnectionsThatMappedLeaveNoDescriptorBehind) {
  store_rig rig;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  raw_peer(rig.over_unix(), pool, "p", true).leave();
  ASSERT_TRUE(soon([&] { return rig.server().engine().stats().sessions == 1; }));
  const int before = test::open_descriptor_count();
  for (int i = 0; i < 200; ++i) raw_peer(rig.over_unix(), pool, "p", true).leave();
  EXPECT_TRUE(soon([&] { return rig.server().engine().stats().sessions == 1; }));
  EXPECT_LE(test::open_descriptor_count(), before + 8);
  // With grants they are kept, all of them by one descriptor.
  for (int i = 0; i < 50; ++i) {
    raw_peer one(rig.over_unix(), pool, "p", true);
    store_protocol::head grab;
    grab.op = opcode::alloc;
    grab.pool_id = pool;
    grab.value_bytes = 5000;
    one.ask(grab, "k");
    const auto granted = one.answer();
    ASSERT_TRUE(granted) << i;
    ASSERT_EQ(granted->status, 0) << one.text();
  }
  EXPECT_TRUE(soon([&] { return rig.server().engine().stats().sessions == 51; }, 5))
      << rig.server().engine().stats().sessions;
  EXPECT_EQ(rig.server().engine().stats().grants, 50u);
  EXPECT_TRUE(soon([&] { return test::open_descriptor_count() <= before + 8; }))
      << test::open_descriptor_count() << " of " << before;
}

TEST(store_hostile, AConnectionBeforeTheHandshakeHoldsNoMemory) {
  store_rig rig;
  rig.config.hello_timeout_s = 60;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  const std::uint64_t before = resident_bytes();
  std::vector<std::unique_ptr<raw_peer>> many;
  const std::string filler(2u << 20, 'x');
  for (int i = 0; i < 100; ++i) {
    auto& one = *many.emplace_back(std::make_unique<raw_peer>(rig.over_tcp()));
    store_protocol::head header;
    header.op = i % 2 == 0 ? opcode::hello : opcode::put;
    header.body_bytes = store_protocol::kMaxBodyBytes;
    one.ask(header, i % 2 == 0 ? "" : "k");
    one.send(filler);
  }
  EXPECT_EQ(put(*store, pool, "k", {1}).status, 0);
  EXPECT_TRUE(soon([&] { return rig.server().engine().stats().sessions == 1; }, 5))
      << "what is no handshake is cut off at once";
  EXPECT_LT(resident_bytes() - std::min(before, resident_bytes()), 40u << 20);
}

// Greeted ones too, together: their frames are begun and never ended.
TEST(store_hostile, BegunFramesOfOnePrincipalHaveALimit) {
  store_rig rig;
  rig.config.max_principal_buffer_bytes = 16u << 20;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  std::vector<std::unique_ptr<raw_peer>> many;
  const std::string filler(store_protocol::kMaxBodyBytes - 1, 'x');
  const std::uint64_t before = resident_bytes();
  for (int i = 0; i < 40; ++i) {
    auto& one = *many.emplace_back(std::make_unique<raw_peer>(rig.over_tcp(), pool, "p"));
    store_protocol::head header;
    header.op = opcode::put;
    header.pool_id = pool;
    header.value_bytes = header.body_bytes = store_protocol::kMaxBodyBytes;
    one.ask(header, "k");
    std::string_view rest = filler;
    for (int tries = 0; tries < 50 && !rest.empty(); ++tries) {
      rest.remove_prefix(one.send(rest));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  EXPECT_EQ(put(*store, pool, "k", {1}).status, 0);
#if defined(__SANITIZE_ADDRESS__)
  (void)before;  // AddressSanitizer keeps what was freed
#else
  EXPECT_LT(resident_bytes() - std::min(before, resident_bytes()), 80u << 20);
#endif
  many.clear();
  const auto again = store_rig::open(rig.over_tcp());
  ASSERT_TRUE(again->open_pool("p"));
  EXPECT_EQ(put(*again, pool, "k", random_value(60'000, 1)).status, 0);
}

TEST(store_hostile, ConnectionsOfOnePrincipalHaveALimit) {
  store_rig rig;
  rig.config.max_principal_connections = 20;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  std::vector<std::unique_ptr<raw_peer>> many;
  for (int i = 0; i < 30; ++i) many.push_back(std::make_unique<raw_peer>(rig.over_tcp()));
  int cut_off = 0;
  for (const auto& one : many) cut_off += one->is_cut_off(100);
  EXPECT_EQ(cut_off, 10);
  EXPECT_NE(store_rig::open(rig.over_unix()), nullptr) << "another principal";
  many.clear();
  EXPECT_TRUE(soon([&] { return static_cast<bool>(store_client::client::open(rig.over_tcp())); }));
}

TEST(store_hostile, AnnouncedPutsDoNotHoldTheMemoryTier) {
  store_rig rig;
  rig.config.arena_bytes = 16u << 20;
  rig.config.stall_timeout_s = 2;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  raw_peer one(rig.over_tcp(), pool, "p");
  for (unsigned i = 1; i <= 10; ++i) one.send_put_header(pool, i, "k" + std::to_string(i), 1600 << 10);
  ASSERT_TRUE(soon([&] { return rig.server().engine().stats().grants > 0; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  // Others find room at once,
  auto options = at_level(durability::volatile_);
  options.timeout_ms = 300;
  const auto value = random_value(2 << 20, 1);
  const auto done = put(*store, pool, "k", value, options);
  EXPECT_EQ(done.status, 0) << done.text;
  // and what sends nothing is cut off.
  EXPECT_TRUE(one.is_cut_off(15'000));
  EXPECT_TRUE(soon([&] { return rig.server().engine().stats().grants == 0; }));
}

TEST(store_hostile, ATrickleIsNoProgress) {
  store_rig rig;
  rig.config.stall_timeout_s = 2;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  raw_peer one(rig.over_tcp(), pool, "p");
  one.send_put_header(pool, 1, "k", 1 << 20);
  store_protocol::head header;
  header.op = opcode::data;
  header.request_id = 1;
  header.pool_id = pool;
  header.body_bytes = 1 << 19;
  header.flags = store_protocol::flag::more;
  one.ask(header, "");
  bool cut_off = false;
  for (int i = 0; i < 60 && !cut_off; ++i) {
    one.send("x");
    cut_off = one.is_cut_off(200);
  }
  EXPECT_TRUE(cut_off);
  EXPECT_TRUE(soon([&] { return rig.server().engine().stats().grants == 0; }));
}

// An invalid request ends the connection, and the memory of puts that it has announced is freed.
TEST(store_hostile, AnnouncedPutsAreFreedAfterAProtocolError) {
  store_rig rig;
  rig.config.arena_bytes = 16u << 20;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  for (const bool has_begun : {false, true}) {
    raw_peer one(rig.over_tcp(), pool, "p");
    for (unsigned i = 1; i <= 3; ++i) one.send_put_header(pool, i, "k" + std::to_string(i), 1600 << 10);
    ASSERT_TRUE(soon([&] { return rig.server().engine().stats().grants > 0; }));
    store_protocol::head header;
    header.op = opcode::data;
    header.request_id = 1;
    header.pool_id = pool;
    header.body_bytes = 1000;
    header.flags = store_protocol::flag::more;
    if (has_begun) one.ask(header, "");  // its body is what follows
    one.send(std::string(2000, 'x'));
    EXPECT_TRUE(one.is_cut_off(10'000)) << has_begun;
    EXPECT_TRUE(soon([&] { return rig.server().engine().stats().grants == 0; })) << has_begun;
    EXPECT_TRUE(soon([&] { return rig.server().engine().stats().sessions == 1; })) << has_begun;
  }
}

// Answers that it does not take keep such a connection for as long as they may stall; the memory does not wait for that.
TEST(store_hostile, AnnouncedPutsAreFreedIfTheClientReadsNoReplies) {
  store_rig rig;
  rig.config.arena_bytes = 32u << 20;
  rig.config.stall_timeout_s = 60;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  constexpr std::uint64_t kLarge = 12u << 20;  // more than a socket holds
  ASSERT_EQ(put(*store, pool, "large", random_value(kLarge, 3)).status, 0);
  raw_peer one(rig.over_tcp(), pool, "p");
  store_protocol::head question;
  question.op = opcode::get;
  question.request_id = 99;
  question.pool_id = pool;
  question.value_bytes = kLarge;
  one.ask(question, "large");
  for (unsigned i = 1; i <= 3; ++i) one.send_put_header(pool, i, "k" + std::to_string(i), 1600 << 10);
  ASSERT_TRUE(soon([&] { return rig.server().engine().stats().grants > 0; }));
  one.send(std::string(2000, 'x'));
  EXPECT_TRUE(soon([&] { return rig.server().engine().stats().grants == 0; }));
  EXPECT_EQ(rig.server().engine().stats().sessions, 2u) << "its answers are under way still";
}

// A second put under the number of one whose bytes still come would be all that the server knows of, and the first one's
// memory nobody's.
TEST(store_hostile, TwoPutsUnderOneNumberEndTheConnection) {
  store_rig rig;
  rig.config.arena_bytes = 16u << 20;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  raw_peer one(rig.over_tcp(), pool, "p");
  one.send_put_header(pool, 1, "first", 1600 << 10);
  one.send_put_header(pool, 1, "second", 1600 << 10);
  const auto said = one.answer();
  ASSERT_TRUE(said);
  EXPECT_EQ(said->status, EPROTO) << one.text();
  EXPECT_TRUE(one.is_cut_off(10'000));
  EXPECT_TRUE(soon([&] { return rig.server().engine().stats().grants == 0; }));
}

// Of a volatile pool: a durable value goes past memory soon.
TEST(store_hostile, APutThatWaitsForRoomGoesWithItsClient) {
  for (const bool local : {false, true}) {
    store_rig rig;
    rig.config.arena_bytes = 16u << 20;
    rig.start();
    const auto store = store_rig::open(rig.over_unix());
    store_protocol::pool_settings settings;
    settings.level = durability::volatile_;
    const auto pool = make_pool(*store, "p", settings);
    for (const char* key : {"held", "held too"}) {
      const auto grab = store->make_plain(opcode::alloc, pool, key);
      grab->head.value_bytes = 6u << 20;
      ASSERT_EQ(store->run(grab).status, 0);
    }
    auto one = std::make_unique<raw_peer>(local ? rig.over_unix() : rig.over_tcp(), pool, "p");
    one->send_put_header(pool, 1, "k", 8u << 20);  // without a deadline
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    EXPECT_EQ(rig.server().engine().stats().sessions, 2u);
    EXPECT_EQ(rig.server().engine().stats().grants, 2u) << "it does not wait";
    one.reset();
    EXPECT_TRUE(soon([&] { return rig.server().engine().stats().sessions == 1; })) << local;
  }
}

TEST(store_hostile, SmallVolatileValuesLeaveRoomForTheOthers) {
  store_rig rig;
  rig.config.arena_bytes = 16u << 20;
  rig.config.chunk_bytes = 16u << 20;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  const std::size_t sizes[] = {1000, 30'000, 200'000, 5u << 20};
  for (const std::size_t bytes : sizes)
    ASSERT_EQ(put(*store, pool, "before" + std::to_string(bytes), random_value(bytes, bytes)).status, 0);
  auto options = at_level(durability::volatile_);
  options.timeout_ms = 1;
  std::vector<store_client::operation_ptr> in_flight;
  const auto small = random_value(1000, 7);
  unsigned taken = 0;
  for (unsigned i = 0; i < 17'000; ++i) {
    in_flight.push_back(store->make_put(pool, "small" + std::to_string(i), memory_of(small), options));
    store->start(in_flight.back());
    if (in_flight.size() < 200) continue;
    for (const auto& one : in_flight) {
      ASSERT_TRUE(store->wait(one));
      taken += one->got.status == 0;
    }
    in_flight.clear();
  }
  for (const auto& one : in_flight) {
    ASSERT_TRUE(store->wait(one));
    taken += one->got.status == 0;
  }
  EXPECT_GE(taken, 7000u);
  const auto remote = store_rig::open(rig.over_tcp());
  ASSERT_TRUE(remote->open_pool("p"));
  for (store_client::client* const connection : {store.get(), remote.get()})
    for (const std::size_t bytes : sizes) {
      EXPECT_TRUE(get(*connection, pool, "before" + std::to_string(bytes), bytes) == random_value(bytes, bytes)) << bytes;
      const auto done = put(*connection, pool, "after" + std::to_string(bytes), random_value(bytes, bytes + 1));
      EXPECT_EQ(done.status, 0) << bytes << ": " << done.text;
      EXPECT_TRUE(get(*connection, pool, "after" + std::to_string(bytes), bytes) == random_value(bytes, bytes + 1)) << bytes;
    }
  EXPECT_TRUE(get(*store, pool, "small0", 1000) == small);
}

// Pins and grants fill the memory tier: values that are on disk are read past it.
TEST(store_hostile, AFullMemoryTierIsReadPast) {
  store_rig rig;
  rig.config.arena_bytes = 16u << 20;
  rig.config.max_principal_memory_percent = 100;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  const auto value = random_value(3u << 20, 1), middle = random_value(20'000, 2);
  ASSERT_EQ(put(*store, pool, "large", value).status, 0);
  ASSERT_EQ(put(*store, pool, "middle", middle).status, 0);
  for (unsigned i = 0; i < 64; ++i) {
    const auto grab = store->make_plain(opcode::alloc, pool, "held" + std::to_string(i), 50);
    grab->head.value_bytes = 1u << 20;
    if (store->run(grab).status != 0) break;
  }
  EXPECT_GE(rig.server().engine().stats().grants, 12u);
  const auto remote = store_rig::open(rig.over_tcp());
  ASSERT_TRUE(remote->open_pool("p"));
  for (store_client::client* const connection : {store.get(), remote.get()}) {
    EXPECT_TRUE(get(*connection, pool, "large", value.size()) == value);
    EXPECT_TRUE(get(*connection, pool, "middle", middle.size()) == middle);
  }
}

// The numbers of pins follow each other, and the handshake has told one. The memory of a value that is on its way to a
// client would be another value's, of another principal even.
TEST(store_hostile, PinsThatTheServerHoldsForAClientAreNotTheClients) {
  store_rig rig;
  rig.config.arena_bytes = 32u << 20;
  rig.config.chunk_bytes = 16u << 20;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  constexpr std::uint64_t kBytes = 12u << 20;  // more than a socket holds
  const auto value = random_value(kBytes, 3);
  ASSERT_EQ(put(*store, pool, "large", value, at_level(durability::volatile_)).status, 0);
  raw_peer one(rig.over_tcp(), pool, "p");
  store_protocol::head question;
  question.op = opcode::get;
  question.request_id = 1;
  question.pool_id = pool;
  question.value_bytes = kBytes;
  one.ask(question, "large");
  ASSERT_TRUE(soon([&] { return rig.server().engine().stats().pins == 1; }));
  question.op = opcode::unpin;
  question.value_bytes = 0;
  store_protocol::tail guesses;
  for (std::uint64_t i = 1; i <= 200; ++i) guesses.unpin.push_back(i);
  ++question.request_id;
  one.ask(question, "", guesses);
  ASSERT_EQ(store->run(store->make_plain(opcode::erase, pool, "large")).status, 0);
  const auto other = random_value(kBytes, 4);
  for (const char* key : {"1", "2", "3"}) {
    auto options = at_level(durability::volatile_);
    options.timeout_ms = 200;
    (void)put(*store, pool, key, other, options);
  }
  EXPECT_EQ(rig.server().engine().stats().pins, 1u);
  std::string body;
  while (body.size() < kBytes) {
    const auto next = one.answer();
    ASSERT_TRUE(next && next->status == 0);
    if (next->op == opcode::data) body += one.body();
  }
  EXPECT_EQ(std::memcmp(body.data(), value.data(), kBytes), 0) << "the client got what is not its value";
  EXPECT_TRUE(soon([&] { return rig.server().engine().stats().pins == 0; }));
}

TEST(store_hostile, ASearchEndsWhateverItsPattern) {
  store_rig rig;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  for (int i = 0; i < 1000; ++i)
    ASSERT_EQ(put(*store, pool, std::string(4000, 'a') + std::to_string(i), {1}, at_level(durability::volatile_)).status, 0);
  const auto begin = std::chrono::steady_clock::now();
  std::vector<store_client::operation_ptr> all;
  for (const char* text : {"(a+)+b", "((a|aa)+)+b", "(a|a)*b.*c"})
    for (int i = 0; i < 4; ++i) {
      auto one = store->make_plain(opcode::find, pool, {});
      one->fields.regex = text;
      store->start(one);
      all.push_back(one);
    }
  for (const auto& one : all) EXPECT_TRUE(store->wait(one, store_client::clock::now() + std::chrono::seconds(30)));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  for (const auto& one : all) EXPECT_EQ(one->got.status, 0) << one->got.text;
}

TEST(store_hostile, ScrapersAreFewAtATime) {
  constexpr int kScrapers = 60, kMaxScrapes = 16;  // as in server.cpp
  store_rig rig;
  rig.config.metrics = "127.0.0.1:0";
  rig.config.hello_timeout_s = 60;
  rig.start();
  store_client::client_options metrics_options;
  metrics_options.server.endpoint = rig.server().metrics_endpoint();
  std::vector<std::unique_ptr<raw_peer>> many;
  for (int i = 0; i < kScrapers; ++i) many.push_back(std::make_unique<raw_peer>(metrics_options));
  int cut_off = 0;
  for (const auto& one : many) cut_off += one->is_cut_off(200);
  EXPECT_EQ(cut_off, kScrapers - kMaxScrapes);
}

TEST(store_hostile, ASilentMetricsClientIsClosed) {
  store_rig rig;
  rig.config.metrics = "127.0.0.1:0";
  rig.config.hello_timeout_s = 1;
  rig.start();
  const int before = test::open_descriptor_count();
  std::vector<std::unique_ptr<raw_peer>> many;
  store_client::client_options metrics_options;
  metrics_options.server.endpoint = rig.server().metrics_endpoint();
  for (int i = 0; i < 100; ++i) many.push_back(std::make_unique<raw_peer>(metrics_options));
  EXPECT_TRUE(soon([&] { return test::open_descriptor_count() <= before + static_cast<int>(many.size()) + 40; }))
      << test::open_descriptor_count();
  for (const auto& one : many) EXPECT_TRUE(one->is_cut_off(5000));
}

// The kernel's send queue of a dropped client is freed, even while the client still runs.
TEST(store_hostile, UnreadDataOfADroppedClientLeavesTheKernel) {
  store_rig rig;
  rig.config.stall_timeout_s = 1;
  rig.start();
  const auto good = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*good, "p");
  ASSERT_TRUE(good->open_pool("p"));
  ASSERT_EQ(put(*good, pool, "k", random_value(7u << 20, 1)).status, 0);
  raw_peer idler(rig.over_tcp(), pool, "p");
  store_protocol::head header;
  header.op = store_protocol::opcode::get;
  header.request_id = 1;
  header.pool_id = pool;
  header.value_bytes = 7u << 20;
  for (int i = 0; i < 4; ++i, ++header.request_id) idler.ask(header, "k");
  const auto port = static_cast<unsigned>(std::stoul(rig.config.listen.substr(rig.config.listen.rfind(':') + 1)));
  // Bytes that the kernel keeps for the port's connections, by state.
  const auto kept = [port](unsigned wanted_state) {
    std::ifstream table("/proc/net/tcp");
    std::string line;
    std::uint64_t bytes = 0;
    while (std::getline(table, line)) {
      unsigned own = 0, state = 0, queued = 0;
      if (std::sscanf(line.c_str(), " %*u: %*8x:%x %*8x:%*x %x %x:", &own, &state, &queued) == 3 && own == port &&
          state == wanted_state)
        bytes += queued;
    }
    return bytes;
  };
  constexpr unsigned kEstablished = 1, kFinWait1 = 4;
  const auto wait_for = [](const std::function<bool()>& is, int seconds) {
    for (int i = 0; i < seconds * 20 && !is(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return is();
  };
  EXPECT_TRUE(wait_for([&] { return kept(kEstablished) > 100'000; }, 10));
  EXPECT_TRUE(wait_for([&] { return kept(kFinWait1) > 100'000; }, 20)) << "it was not let go";
  EXPECT_TRUE(wait_for([&] { return kept(kFinWait1) == 0; }, 40)) << kept(kFinWait1) << " bytes";
}

}  // namespace
}  // namespace pl::store_test
