// SPDX-License-Identifier: Apache-2.0
// Many puts begun at once on one connection: whatever they occupy, they do not keep each other from ending.
#include <gtest/gtest.h>

#include "test/store/server/raw_peer.hpp"
#include "test/store/server/store_rig.hpp"

namespace pl::store_test {
namespace {

using store_protocol::durability;
using store_protocol::opcode;

struct load {
  const char* name;
  bool by_tcp;
  durability level;
  unsigned puts;
  std::uint64_t bytes;
  std::uint64_t arena_bytes;
  std::uint64_t max_request_bytes = 1u << 30;
};

class store_turns : public ::testing::TestWithParam<load> {};

TEST_P(store_turns, AllPutsOfALongListEnd) {
  const load& many = GetParam();
  store_rig rig;
  rig.config.arena_bytes = many.arena_bytes;
  rig.config.chunk_bytes = 16u << 20;
  rig.config.max_request_bytes = many.max_request_bytes;
  rig.start();
  const auto store = store_rig::open(many.by_tcp ? rig.over_tcp() : rig.over_unix());
  const auto pool = make_pool(*store, "p");
  std::vector<bytes_t> values;
  for (unsigned i = 0; i < 8; ++i) values.push_back(random_value(many.bytes, i));
  auto options = at_level(many.level);
  options.timeout_ms = 60'000;
  std::vector<store_client::operation_ptr> begun;
  for (unsigned i = 0; i < many.puts; ++i)
    begun.push_back(store->make_put(pool, "k" + std::to_string(i), memory_of(values[i % 8]), options));
  store->start(begun);
  for (const auto& one : begun) {
    store->wait(one);
    ASSERT_EQ(one->got.status, 0) << one->got.text;
  }
  for (unsigned i = 0; i < many.puts; i += 7)
    ASSERT_EQ(get(*store, pool, "k" + std::to_string(i), many.bytes), values[i % 8]) << i;
  store_client::client_options other = rig.over_unix();
  other.use_shm = false;
  const auto another = store_rig::open(other);
  const auto same = another->open_pool("p");
  ASSERT_TRUE(same);
  const auto done = put(*another, *same, "other", values[0], options);
  EXPECT_EQ(done.status, 0) << "something stays occupied: " << done.text;
}

INSTANTIATE_TEST_SUITE_P(Loads, store_turns,
                         ::testing::Values(
                             // more than a principal may hold of the memory
                             load{"MemoryVolatile", false, durability::volatile_, 40, 1 << 20, 16 << 20},
                             load{"MemoryDurable", false, durability::durable, 40, 1 << 20, 16 << 20},
                             load{"SocketVolatile", true, durability::volatile_, 40, 1 << 20, 16 << 20},
                             // more than the store writes past its memory at a time
                             load{"SocketDurable", true, durability::durable, 100, 1 << 20, 16 << 20},
                             // more than a connection's requests
                             load{"ManyInMemory", false, durability::volatile_, 3000, 20'000, 160 << 20},
                             load{"ManyBySocket", true, durability::volatile_, 1500, 70'000, 160 << 20},
                             // more than a connection may have in progress
                             load{"LongInMemory", false, durability::volatile_, 30, 1 << 20, 64 << 20, 4 << 20},
                             load{"LongBySocket", true, durability::volatile_, 30, 1 << 20, 64 << 20, 4 << 20}),
                         [](const auto& one) { return std::string(one.param.name); });

store_protocol::head request(opcode op, std::uint64_t id, std::uint32_t pool, std::uint64_t value_bytes = 0) {
  store_protocol::head out;
  out.op = op;
  out.request_id = id;
  out.pool_id = pool;
  out.value_bytes = value_bytes;
  return out;
}

// Clients of other releases ask for everything first.
TEST(store_turn_requests, WhatMakesRoomIsReadWhileRequestsWaitForRoom) {
  store_rig rig;
  rig.config.arena_bytes = 16u << 20;
  rig.config.max_requests = 4;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  store_protocol::pool_settings settings;
  settings.level = durability::volatile_;  // others are soon sent past the memory tier
  const auto pool = make_pool(*store, "p", settings);
  raw_peer one(rig.over_unix(), pool, "p", true);
  constexpr unsigned kPuts = 30;
  for (unsigned i = 0; i < kPuts; ++i) one.ask(request(opcode::alloc, i, pool, 1 << 20), "k" + std::to_string(i));
  unsigned granted = 0, ended = 0;
  while (ended < kPuts) {
    const auto got = one.answer();
    ASSERT_TRUE(got) << granted << " granted, " << ended << " ended";
    ASSERT_EQ(got->status, 0) << one.text();
    if (got->op != opcode::alloc) {
      ++ended;
      continue;
    }
    ++granted;
    store_protocol::tail fields;
    fields.token = one.token();
    one.ask(request(granted % 2 == 0 ? opcode::abort : opcode::commit, 1000 + granted, pool), "", fields);
  }
  EXPECT_TRUE(soon([&] { return rig.server().engine().stats().grants == 0; }));
}

TEST(store_turn_requests, PutsInPiecesNeedNoMoreThanOneRequest) {
  store_rig rig;
  rig.config.max_requests = 1;
  rig.start();
  const auto store = store_rig::open(rig.over_tcp());
  const auto pool = make_pool(*store, "p");
  const auto value = random_value(1 << 20, 1);
  store_client::put_request options;
  options.timeout_ms = 10'000;
  const auto done = put(*store, pool, "k", value, options);
  ASSERT_EQ(done.status, 0) << done.text;
  EXPECT_EQ(get(*store, pool, "k", value.size()), value);
  // The number of those whose bytes have not come has the same limit.
  raw_peer one(rig.over_tcp(), pool, "p");
  one.send_put_header(pool, 1, "a", 100'000);
  one.send_put_header(pool, 2, "b", 100'000);
  const auto refused = one.answer();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->request_id, 2u);
  EXPECT_EQ(refused->status, ENOSPC);
  EXPECT_NE(one.text().find("max_requests"), std::string::npos) << one.text();
}

}  // namespace
}  // namespace pl::store_test
