// SPDX-License-Identifier: Apache-2.0
// The parts of a cluster that need no other process: slots, the map's text, how the map changes, turns, etcd's encodings.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "store/cluster/catch_up.hpp"
#include "store/cluster/cluster_pools.hpp"
#include "store/cluster/etcd_answer.hpp"
#include "store/cluster/key_serializer.hpp"
#include "store/cluster/plan.hpp"

namespace pl::store_cluster {
namespace {

using store_client::kPlacements;
using store_client::kUnits;
using store_client::left_in;
using store_client::slot_of;

TEST(slot_map, SlotsAreCrc16OfTheKey) {
  // Check value of CRC-16/XMODEM, and slots that other programs with this rule give.
  EXPECT_EQ(slot_of("123456789"), 0x31c3u % 16384);
  EXPECT_EQ(slot_of("foo"), 12182u);
  EXPECT_EQ(slot_of("bar"), 5061u);
  EXPECT_EQ(slot_of(""), 0u);
}

constexpr copies_in_use kAllUsed = {true, true, true, true};

void enter(cluster_map& map, const std::string& name, std::uint64_t run = 7) {
  store_cluster::enter(map, name, name + ":1", run, {"disk-of-" + name, true}, kAllUsed);
}

cluster_map map_of(const std::vector<std::string>& names) {
  cluster_map map;
  for (const auto& name : names) enter(map, name);
  return map;
}

// As servers do when all copies fill at once and serving moves without delay.
void settle(cluster_map& map, const names_t& alive) {
  for (bool again = true; again;) {
    again = place(map, alive);
    for (unsigned unit = 0; unit < kPlacements; ++unit) {
      placement& entry = map.units[unit];
      for (const auto& one : entry.joining) entry.copies.push_back(one);
      again = again || !entry.joining.empty();
      entry.joining.clear();
      if (const std::string successor = successor_of(map, unit, entry.copies.front()); !successor.empty()) {
        std::erase(entry.copies, successor);
        entry.copies.insert(entry.copies.begin(), successor);
        again = true;
      }
    }
    again = retire(map) || again;
  }
}

std::map<std::string, int> served(const cluster_map& map, unsigned copies) {
  std::map<std::string, int> out;
  for (unsigned unit = 0; unit < kUnits; ++unit) ++out[map.units[(copies - 1) * kUnits + unit].copies.front()];
  return out;
}

TEST(slot_map, ComesBackFromItsText) {
  auto map = map_of({"a", "b", "c"});
  map.epoch = 1ull << 60;
  map.id = ~0ull;
  map.servers["b"].assigned_role = cluster_server::role::leaving;
  map.servers["c"].down = true;
  map.units[5].copies = {left_in("b", "0123")};
  place(map, {"a", "b", "c"});
  const auto read = store_client::read_cluster_map(to_text(map));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->epoch, map.epoch);
  EXPECT_EQ(read->id, map.id);
  EXPECT_EQ(read->servers, map.servers);
  EXPECT_TRUE(read->units == map.units);
  EXPECT_LT(to_text(map).size(), 100'000u) << "etcd takes 1.5 MB";
}

TEST(slot_map, AnInstanceWithoutASocketIsNotKept) {
  const auto read = store_client::read_cluster_map(
      R"({"epoch":1,"servers":{"a":{"endpoint":"h:1","role":"in","run":1,"instance":5}},"slots":[]})");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(store_client::read_cluster_map(to_text(*read))->servers, read->servers);
}

TEST(slot_map, WhatIsNoMapIsRefused) {
  const std::string good = to_text(map_of({"a"}));
  EXPECT_TRUE(store_client::read_cluster_map(good));
  std::mt19937 random(1);
  std::size_t refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string bad = good;
    for (auto k = random() % 3 + 1; k > 0; --k) bad[random() % bad.size()] = static_cast<char>(random() % 128);
    refused += store_client::read_cluster_map(bad).ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 500u);
  for (const char* bad : {"", "[]", "{}", R"({"epoch":-1,"servers":{},"slots":[]})",
                          R"({"epoch":1,"servers":{},"slots":[{"copies":9,"slots":[0,63],"on":[]}]})",
                          R"({"epoch":1,"servers":{},"slots":[{"copies":1,"slots":[0,16384],"on":[]}]})",
                          R"({"epoch":1,"servers":{},"slots":[{"copies":1,"slots":[1,63],"on":[]}]})"})
    EXPECT_FALSE(store_client::read_cluster_map(bad)) << bad;
}

TEST(plan, SpreadsSlotsAndMovesFewWhenAServerComesOrGoes) {
  auto map = map_of({"a", "b", "c"});
  settle(map, {"a", "b", "c"});
  for (const auto& [name, count] : served(map, 2)) EXPECT_NEAR(count, 85, 30) << name;
  for (const auto& entry : map.units)
    EXPECT_EQ(std::set<std::string>(entry.copies.begin(), entry.copies.end()).size(), entry.copies.size());
  EXPECT_EQ(map.units[2 * kUnits].copies.size(), 3u);
  const auto before = map;
  enter(map, "d", 8);
  settle(map, {"a", "b", "c", "d"});
  int moved = 0;
  for (unsigned unit = 0; unit < kUnits; ++unit) {
    if (map.units[unit].copies == before.units[unit].copies) continue;
    ++moved;
    EXPECT_EQ(map.units[unit].copies, std::vector<std::string>{"d"}) << "only the new one's share moves";
  }
  EXPECT_NEAR(moved, 64, 30);
  map.servers["d"].assigned_role = cluster_server::role::leaving;
  settle(map, {"a", "b", "c", "d"});
  EXPECT_TRUE(map.units == before.units);
  EXPECT_EQ(map.servers["d"].assigned_role, cluster_server::role::out);
}

TEST(plan, ADeadServersSlotsGoToACompleteCopyAndTheOthersJoinAnew) {
  auto map = map_of({"a", "b", "c"});
  map.units[600].copies = {"a", "b", "c"};
  map.units[601].copies = {"b", "a"};
  map.units[602].copies = {"a"};
  map.units[603].copies = {"a"};
  map.units[603].joining = {"b"};
  EXPECT_TRUE(forget_dead(map, {"b", "c"}));
  EXPECT_EQ(map.units[600].copies, std::vector<std::string>{"b"});
  EXPECT_EQ(map.units[600].joining, std::vector<std::string>{"c"});
  EXPECT_EQ(map.units[601].copies, std::vector<std::string>{"b"});
  EXPECT_EQ(map.units[602].copies, std::vector<std::string>{"a"}) << "nobody else is complete: it waits";
  EXPECT_EQ(map.units[603].copies, std::vector<std::string>{"a"}) << "a copy that is being filled takes over nothing";
  EXPECT_FALSE(forget_dead(map, {"b", "c"}));
}

void enter_with(cluster_map& map, const std::string& folder, bool has_its_pools = false,
                const copies_in_use& used = kAllUsed) {
  store_cluster::enter(map, "a", "a:1", 9, {folder, has_its_pools}, used);
}

TEST(plan, AServerWithAnotherFolderIsCompleteNowhere) {
  auto map = map_of({"a", "b"});
  map.units[0].copies = {"a"};
  map.units[300].copies = {"a", "b"};
  map.units[301].copies = {"b", "a"};
  const auto before = map;
  enter_with(map, "disk-of-a");
  EXPECT_TRUE(map.units == before.units);
  enter_with(map, "new");
  EXPECT_EQ(map.units[0].copies, std::vector<std::string>{"a#disk-of-a"});
  EXPECT_EQ(map.units[300].copies, (std::vector<std::string>{"a#disk-of-a", "b"}));
  EXPECT_EQ(left_behind(map, "a"), 3u);
  EXPECT_EQ(map.endpoint_for(1, "123456789"), "") << "nobody serves it";
  // Alone it is given nothing, however often the map is looked at, and comes back the same.
  for (int i = 0; i < 3; ++i) {
    forget_dead(map, {"a"});
    place(map, {"a"});
    enter_with(map, "new");
  }
  for (const unsigned unit : {0u, 300u, 301u}) EXPECT_FALSE(map.units[unit].has("a")) << unit;
  // The other complete copy takes over and fills it; what nobody else has waits.
  auto with_b = map;
  forget_dead(with_b, {"a", "b"});
  place(with_b, {"a", "b"});
  EXPECT_EQ(with_b.units[300].copies, std::vector<std::string>{"b"});
  EXPECT_TRUE(with_b.units[300].fills("a"));
  EXPECT_EQ(left_behind(with_b, "a"), 1u);
  // The right disk again.
  enter_with(map, "disk-of-a");
  EXPECT_EQ(map.units[0].copies, std::vector<std::string>{"a"});
  EXPECT_EQ(map.units[300].copies, before.units[300].copies);
  EXPECT_EQ(map.units[301].copies, before.units[301].copies);
}

TEST(plan, WhereNoPoolIsNothingCanBeMissing) {
  auto map = map_of({"a", "b"});
  map.units[0].copies = {"a"};
  map.units[300].copies = {"a"};
  enter_with(map, "new", false, {false, false, true, false});
  EXPECT_EQ(map.units[0].copies, std::vector<std::string>{"a"}) << "no pool has one copy";
  EXPECT_EQ(map.units[300].copies, std::vector<std::string>{"a#disk-of-a"});
}

TEST(plan, AMapWithoutIdentitiesAcceptsAFolderWithItsPools) {
  auto map = map_of({"a", "b"});
  map.units[0].copies = {"a"};
  map.servers["a"].folder.clear();
  auto wiped = map;
  enter_with(map, "old", true);
  EXPECT_EQ(map.units[0].copies, std::vector<std::string>{"a"});
  EXPECT_EQ(map.servers["a"].folder, "old");
  enter_with(wiped, "new", false);
  EXPECT_EQ(wiped.units[0].copies, std::vector<std::string>{"a#unknown"});
}

TEST(plan, AcceptedLossGivesUpOnlyWhatIsLost) {
  auto map = map_of({"a", "b", "c"});
  map.units[0].copies = {"a"};
  map.units[1].copies = {"c"};
  map.units[300].copies = {"a", "b"};
  auto burnt = map;
  enter_with(map, "new");
  EXPECT_EQ(accept_loss(map, "a", {"a"}), 2u);
  EXPECT_EQ(map.units[0].copies, std::vector<std::string>{"a"});
  EXPECT_EQ(map.units[1].copies, std::vector<std::string>{"c"});
  EXPECT_EQ(map.units[300].copies, std::vector<std::string>{"b"}) << "b has it all, and may come back";
  EXPECT_EQ(accept_loss(map, "a", {"a"}), 0u);
  // A server that never comes back.
  EXPECT_EQ(accept_loss(burnt, "a", {}), 1u) << "where nobody is alive to take it, it waits";
  EXPECT_EQ(burnt.units[0].copies, std::vector<std::string>{"a"});
  EXPECT_EQ(accept_loss(burnt, "a", {"c"}), 1u);
  EXPECT_EQ(burnt.units[0].copies, std::vector<std::string>{"c"});
  // Its folder has no part in what others took over.
  enter_with(burnt, "disk-of-a");
  EXPECT_FALSE(burnt.units[0].has("a"));
}

TEST(plan, AUnitWithOneCopyLeftGetsAnotherAtOnce) {
  auto map = map_of({"a", "b", "c"});
  map.servers["b"].down = false;  // it is away, but its copies are not given up yet
  for (auto& entry : map.units) entry.copies = {"a"};
  place(map, {"a", "c"});
  for (unsigned unit = kUnits; unit < kPlacements; ++unit) EXPECT_TRUE(map.units[unit].fills("c")) << unit;
}

TEST(plan, AnyMixOfDeathsAndReturnsKeepsACompleteCopy) {
  std::mt19937 random(3);
  const std::vector<std::string> all = {"a", "b", "c", "d"};
  for (int round = 0; round < 50; ++round) {
    auto map = map_of({"a", "b", "c"});
    names_t alive = {"a", "b", "c"};
    settle(map, alive);
    for (int step = 0; step < 30; ++step) {
      const auto before = map;
      const auto& chosen = all[random() % all.size()];
      if (alive.contains(chosen)) {
        alive.erase(chosen);
      } else {
        forget_dead(map, alive);
        enter(map, chosen, random());
        alive.insert(chosen);
      }
      if (alive.empty()) continue;
      forget_dead(map, alive);
      if (random() % 2 == 0) place(map, alive);
      for (unsigned unit = 0; unit < kPlacements; ++unit) {
        const auto& copies = map.units[unit].copies;
        ASSERT_FALSE(copies.empty());
        // A complete replica was complete before: no server becomes it by the death of another.
        for (const auto& one : copies) ASSERT_TRUE(before.units[unit].has(one)) << unit;
      }
      if (random() % 4 == 0) settle(map, alive);
    }
  }
}

TEST(key_serializer, GrantsInOrderAndRunsReadersAfterwards) {
  key_serializer serializer;
  std::string order;
  ASSERT_TRUE(serializer.try_take("k"));
  EXPECT_FALSE(serializer.try_take("k"));
  EXPECT_TRUE(serializer.try_take("other"));
  serializer.behind("free", [&] { order += 'f'; });
  serializer.behind("k", [&] { order += 'r'; });
  serializer.take("k", [&] { order += '2'; });
  serializer.behind("k", [&] { order += 's'; });
  serializer.take("k", [&] {
    order += '3';
    serializer.leave("k");
  });
  EXPECT_EQ(order, "f");
  serializer.leave("k");
  EXPECT_EQ(order, "fr2");
  serializer.leave("k");
  EXPECT_EQ(order, "fr2s3");
  EXPECT_TRUE(serializer.try_take("k"));
}

TEST(key_serializer, AThousandThatLeaveAtOnceDoNotNest) {
  key_serializer serializer;
  ASSERT_TRUE(serializer.try_take("k"));
  int depth = 0, deepest = 0, ran = 0;
  for (int i = 0; i < 1000; ++i)
    serializer.take("k", [&] {
      deepest = std::max(deepest, ++depth);
      ++ran;
      serializer.leave("k");
      --depth;
    });
  serializer.leave("k");
  EXPECT_EQ(ran, 1000);
  EXPECT_EQ(deepest, 1);
}

TEST(etcd_text, Base64AndPrefixes) {
  for (const std::string one : {"", "f", "fo", "foo", "foob"}) EXPECT_EQ(*from_base64(to_base64(one)), one);
  EXPECT_EQ(to_base64("foob"), "Zm9vYg==");
  EXPECT_EQ(to_base64(std::string("\xff\x00\xfe", 3)), "/wD+");
  EXPECT_FALSE(from_base64("Zm9v*"));
  EXPECT_EQ(end_of_prefix("/a/"), "/a0");
  EXPECT_EQ(end_of_prefix("a\xff"), "b");
}

TEST(etcd_text, AnswersOfSomebodyElseAreFailures) {
  for (const char* bad : {"", "[]", "7", "{", "\xff"})
    EXPECT_EQ(etcd_answer::listed(std::string(bad)).code(), EPROTO) << bad;
  // Members of other types than etcd gives them: these ended the server once.
  for (const char* bad : {R"({"succeeded":"yes"})", R"({"succeeded":1})", R"({"succeeded":null})"})
    EXPECT_EQ(etcd_answer::succeeded(std::string(bad)).code(), EPROTO) << bad;
  EXPECT_FALSE(*etcd_answer::succeeded(std::string("{}")));
  EXPECT_TRUE(*etcd_answer::succeeded(std::string(R"({"succeeded":true})")));
  const auto odd = etcd_answer::listed(std::string(R"({"header":7,"kvs":[1,{"key":5,"value":"*","lease":[]}]})"));
  ASSERT_TRUE(odd);
  EXPECT_EQ(odd->entries.size(), 2u);
  EXPECT_EQ(etcd_answer::listed(std::string(R"({"kvs":"none"})")).code(), EPROTO);  // not: that there is nothing
  EXPECT_EQ(*etcd_answer::seconds_left(std::string(R"({"result":[]})")), 0);
  EXPECT_EQ(etcd_answer::lease_given(std::string(R"({"ID":"x"})")).code(), EPROTO);
}

TEST(etcd_text, AddressesThatAreNone) {
  using namespace std::chrono_literals;
  EXPECT_TRUE(etcd::connect({"http://10.0.0.1:2379", "http://[::1]:2379/"}, 1s));
  for (const char* bad : {"", "10.0.0.1:2379", "ftp://h:1", "http://h", "http://:1", "http://h:"})
    EXPECT_EQ(etcd::connect({bad}, 1s).code(), EINVAL) << bad;
  EXPECT_EQ(etcd::connect({}, 1s).code(), EINVAL);
  // https needs an authority, and files that are some.
  EXPECT_EQ(etcd::connect({"http://h:1", "https://h:1"}, 1s).code(), EINVAL);
  EXPECT_EQ(etcd::connect({"https://h:1"}, 1s, {"/dev/null", "", ""}).code(), EINVAL);
  EXPECT_EQ(etcd::connect({"https://h:1"}, 1s, {"/dev/null", "/dev/null", ""}).code(), EINVAL);
  EXPECT_EQ(etcd::connect({"https://h"}, 1s).code(), EINVAL);
}

TEST(cluster_pools, SettingsComeBackFromTheirText) {
  store::pool_options one;
  one.level = store::durability::logged;
  one.quota_bytes = 1ull << 40;
  one.tags = "pool=77;shm=1;copies=2;access=uid:0=rwa;copies=9";
  const auto read = read_pool(to_text(one));
  ASSERT_TRUE(read);
  EXPECT_EQ(to_text(*read), to_text(one));
  EXPECT_EQ(number_in_tags(one.tags, "copies"), 2u) << "what stands in the access list is not a setting";
  EXPECT_EQ(number_in_tags(one.tags, "pool"), 77u);
  EXPECT_EQ(number_in_tags(one.tags, "cop"), 0u);
  EXPECT_FALSE(read_pool("{}"));
}

TEST(catch_up, UnitsComeBackFromTheirBytes) {
  unit_set units;
  units.set(0).set(7).set(8).set(kPlacements - 1);
  EXPECT_EQ(*units_in(to_bytes(units)), units);
  EXPECT_FALSE(units_in("short"));
}

}  // namespace
}  // namespace pl::store_cluster
