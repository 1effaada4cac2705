// SPDX-License-Identifier: Apache-2.0
// The principals that the store accepts, and the data that each of them can see.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <vector>

#include "test/store/server/raw_peer.hpp"

namespace pl::store_test {
namespace {

using store_protocol::durability;
using store_protocol::opcode;

TEST(store_boundary, PlainTcpIsNoAdminUnlessNamed) {
  store_rig rig;
  rig.config.admins.clear();
  rig.start();
  const auto admin = store_rig::open(rig.over_unix()), anybody = store_rig::open(rig.over_tcp());
  store_protocol::pool_settings settings;
  settings.access = own_uid() + "=rw";
  const auto pool = make_pool(*admin, "mine", settings);
  ASSERT_EQ(put(*admin, pool, "k", {1}).status, 0);
  EXPECT_EQ(anybody->open_pool("mine").code(), EACCES);
  EXPECT_EQ(anybody->create_pool("theirs", {}).code(), EACCES);
  EXPECT_EQ(anybody->run(anybody->make_plain(opcode::pool_delete, 0, "mine")).status, EACCES);
  EXPECT_EQ(get(*admin, pool, "k", 1), bytes_t{1});
  // Only on request.
  rig.stop();
  rig.config.admins = {own_uid(), "tcp"};
  rig.start();
  const auto named = store_rig::open(rig.over_tcp());
  EXPECT_TRUE(named->open_pool("mine"));
}

// Changes at the same time: a connection that is open has the rights of the one that stays.
TEST(store_boundary, OpenConnectionsHaveTheRightsOfTheLastChange) {
  constexpr std::size_t kAdmins = 6, kTurns = 1000;  // without the fix 13 to 289 turns were enough
  store_rig rig;
  rig.config.threads = 4;
  rig.config.admins = {own_uid()};
  rig.start();
  std::vector<std::unique_ptr<store_client::client>> admins;
  for (std::size_t i = 0; i < kAdmins; ++i) admins.push_back(store_rig::open(rig.over_unix()));
  const auto reader = store_rig::open(rig.over_tcp());
  store_protocol::pool_settings settings;
  settings.access = "tcp=r";
  const auto pool = make_pool(*admins[0], "p", settings);
  ASSERT_EQ(put(*admins[0], pool, "k", {1}).status, 0);
  ASSERT_TRUE(reader->open_pool("p"));
  for (std::size_t turn = 0; turn < kTurns; ++turn) {
    std::vector<store_client::operation_ptr> changes;
    for (std::size_t i = 0; i < kAdmins; ++i) {
      changes.push_back(admins[i]->make_plain(opcode::pool_set, 0, "p"));
      changes.back()->fields.settings.emplace().access = i % 2 == 0 ? "tcp=r" : own_uid() + "=rwa";
      admins[i]->start(changes.back());
    }
    for (std::size_t i = 0; i < kAdmins; ++i) {
      admins[i]->wait(changes[i]);
      ASSERT_EQ(changes[i]->got.status, 0) << changes[i]->got.text;
    }
    const auto pools = admins[0]->list_pools();
    ASSERT_TRUE(pools && pools->size() == 1);
    const bool may_read = pools->front().settings.access == "tcp=r";
    ASSERT_EQ(reader->run(reader->make_plain(opcode::stat, pool, "k")).status, may_read ? 0 : EACCES) << turn;
  }
}

// The memory as a client that maps it finds it.
class everything_mapped {
 public:
  explicit everything_mapped(const store_rig& rig) {
    auto wire = store_client::connect(rig.over_unix().server, 5000);
    store_client::handshake_request request;
    request.rings = false;
    auto hello = store_client::do_handshake(**wire, request, 5000);
    EXPECT_TRUE(hello && hello->memory) << (hello ? hello->why_no_shm : hello.error().message);
    if (!hello || !hello->memory) return;
    bytes_ = hello->memory->size_bytes;
    mapping_ = mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, hello->arena_fd, 0);
    EXPECT_NE(mapping_, MAP_FAILED);
    close(hello->arena_fd);
    wire_ = *std::move(wire);
  }
  ~everything_mapped() {
    if (mapping_ != MAP_FAILED) munmap(mapping_, bytes_);
  }
  bool holds(const bytes_t& value) const {
    return memmem(mapping_, bytes_, value.data(), std::min<std::size_t>(value.size(), 64)) != nullptr;
  }

 private:
  std::unique_ptr<store_client::byte_channel> wire_;
  void* mapping_ = MAP_FAILED;
  std::size_t bytes_ = 0;
};

// Small ones share blocks, middle ones are whole blocks, large ones go to extents.
constexpr std::size_t kSizes[] = {200, 1500, 60'000, 3'000'000};

TEST(store_boundary, MappedMemoryHoldsOnlyWhatItsMappersMayReadAndWrite) {
  store_rig rig;
  rig.config.admins = {"uid:4242"};
  rig.config.mappers = {own_uid(), "uid:4242"};
  std::vector<std::pair<std::string, std::uint32_t>> pools;
  {
    store_rig& once = rig;  // pools are made by somebody else
    const auto admins = once.config.admins;
    once.config.admins = {own_uid()};
    once.start();
    const auto admin = store_rig::open(once.over_unix());
    const auto add = [&](const char* name, const std::string& access, bool allow_shm) {
      store_protocol::pool_settings settings;
      settings.access = access;
      settings.allow_shm = allow_shm;
      pools.emplace_back(name, make_pool(*admin, name, settings));
    };
    add("open", "", true);
    add("ours", own_uid() + "=rw,tcp=rw", true);
    add("read only", own_uid() + "=r,tcp=rw", true);
    add("theirs", "tcp=rw", true);
    add("no shm", "", false);
    once.stop();
    once.config.admins = admins;
  }
  rig.start();
  const auto writer = store_rig::open(rig.over_tcp());
  std::map<std::string, std::vector<bytes_t>> values;
  for (const auto& [name, pool] : pools) {
    ASSERT_TRUE(writer->open_pool(name));
    for (const auto level : {durability::volatile_, durability::durable})
      for (const std::size_t bytes : kSizes) {
        auto& list = values[name];
        list.push_back(random_value(bytes, std::hash<std::string>{}(name) + list.size()));
        ASSERT_EQ(put(*writer, pool, "k" + std::to_string(list.size()), list.back(), at_level(level)).status, 0);
      }
  }
  const everything_mapped seen(rig);
  for (const auto& [name, pool] : pools) {
    const bool visible = name == "open" || name == "ours";
    for (std::size_t i = 0; i < values[name].size(); ++i) {
      const auto& value = values[name][i];
      EXPECT_EQ(seen.holds(value), visible) << name << " " << value.size();
      EXPECT_TRUE(get(*writer, pool, "k" + std::to_string(i + 1), value.size()) == value) << name;
    }
  }
}

TEST(store_boundary, WhatOneUserHasGoesThroughMappedMemoryAsBefore) {
  store_rig rig;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  store_protocol::pool_settings mine, others;
  mine.access = own_uid() + "=rw";
  others.access = "uid:4242=rw";  // an admin may all the same
  for (const auto& [name, settings] : {std::pair("a", store_protocol::pool_settings{}), {"b", mine}, {"c", others}}) {
    const auto pool = make_pool(*store, name, settings);
    const auto value = random_value(100'000, 1);
    EXPECT_EQ(put(*store, pool, "k", value).result.way, store_protocol::path::shm_direct) << name;
    store_client::reply got;
    EXPECT_TRUE(get(*store, pool, "k", value.size(), &got) == value);
    EXPECT_EQ(got.result.way, store_protocol::path::shm_direct) << name;
  }
}

// A list that gets narrower takes the values out of what others have mapped.
TEST(store_boundary, ValuesLeaveMappedMemoryWithTheRights) {
  store_rig rig;
  rig.config.admins = {"tcp"};
  rig.config.mappers = {own_uid()};
  rig.start();
  const auto owner = store_rig::open(rig.over_tcp()), mapper = store_rig::open(rig.over_unix());
  store_protocol::pool_settings settings;
  const auto pool = make_pool(*owner, "p", settings);
  ASSERT_TRUE(mapper->open_pool("p"));
  std::vector<bytes_t> values;
  for (const auto level : {durability::volatile_, durability::durable})
    for (const std::size_t bytes : kSizes) {
      values.push_back(random_value(bytes, values.size() + 1));
      ASSERT_EQ(put(*mapper, pool, "k" + std::to_string(values.size()), values.back(), at_level(level)).status, 0);
    }
  const auto change = owner->make_plain(opcode::pool_set, 0, "p");
  settings.access = "tcp=rw";
  change->fields.settings = settings;
  ASSERT_EQ(owner->run(change).status, 0);
  for (std::size_t i = 0; i < values.size(); ++i)
    EXPECT_TRUE(get(*owner, pool, "k" + std::to_string(i + 1), values[i].size()) == values[i]) << i;
  const auto fresh = random_value(60'000, 99);
  ASSERT_EQ(put(*owner, pool, "fresh", fresh).status, 0);
  const everything_mapped seen(rig);
  EXPECT_FALSE(seen.holds(fresh));
  EXPECT_EQ(rig.server().engine().stats().grants, 0u);
  // And into it again.
  settings.access = "";
  const auto back = owner->make_plain(opcode::pool_set, 0, "p");
  back->fields.settings = settings;
  ASSERT_EQ(owner->run(back).status, 0);
  for (std::size_t i = 0; i < values.size(); ++i)
    EXPECT_TRUE(get(*mapper, pool, "k" + std::to_string(i + 1), values[i].size()) == values[i]) << i;
}

// A grant was allowed; its commit comes when it would not be.
TEST(store_boundary, AGrantIsNoRightThatOutlivesTheList) {
  store_rig rig;
  rig.config.admins = {"tcp"};
  rig.config.mappers = {own_uid()};
  rig.start();
  const auto owner = store_rig::open(rig.over_tcp()), mapper = store_rig::open(rig.over_unix());
  store_protocol::pool_settings settings;
  const auto pool = make_pool(*owner, "p", settings);
  ASSERT_TRUE(mapper->open_pool("p"));
  const auto grab = mapper->make_plain(opcode::alloc, pool, "k");
  grab->head.value_bytes = 100'000;
  const auto granted = mapper->run(grab);
  ASSERT_EQ(granted.status, 0) << granted.text;
  settings.access = "tcp=rw";
  const auto change = owner->make_plain(opcode::pool_set, 0, "p");
  change->fields.settings = settings;
  ASSERT_EQ(owner->run(change).status, 0);
  bytes_t room(1);
  ASSERT_TRUE(soon([&] { return mapper->run(mapper->make_get(pool, "k", memory_of(room), {})).status == EACCES; }));
  const auto commit = mapper->make_plain(opcode::commit, pool, {});
  commit->fields.token = granted.fields->token;
  EXPECT_EQ(mapper->run(commit).status, EACCES);
  EXPECT_EQ(rig.server().engine().stats().grants, 0u);
  EXPECT_EQ(owner->run(owner->make_get(pool, "k", memory_of(room), {})).status, ENOENT);
}

}  // namespace
}  // namespace pl::store_test
