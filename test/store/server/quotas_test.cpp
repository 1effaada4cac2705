// SPDX-License-Identifier: Apache-2.0
// What principals may hold: by every path on which a client stores something, between two principals, after a reload, and
// who sees whose figures.
#include "store/server/quotas.hpp"

#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "store/protocol/batch.hpp"
#include "test/store/server/raw_peer.hpp"
#include "test/store/server/store_rig.hpp"

namespace pl::store_test {
namespace {

using store_client::batch_entry;
using store_client::batch_settings;
using store_protocol::durability;
using store_protocol::opcode;
using store_protocol::path;

using held_t = std::pair<std::uint64_t, std::uint64_t>;  // keys, bytes

held_t held_by(store_rig& rig, const std::string& principal) {
  for (const auto& one : rig.server().engine().list_owners())
    if (one.name == principal) return {one.keys, one.bytes};
  return {};
}

using store_client::reply;
using putter = reply (*)(store_client::client&, std::uint32_t pool, const std::string& key, const bytes_t& value);

reply put_durable(store_client::client& store, std::uint32_t pool, const std::string& key, const bytes_t& value) {
  return put(store, pool, key, value, at_level(durability::durable));
}
reply put_volatile(store_client::client& store, std::uint32_t pool, const std::string& key, const bytes_t& value) {
  return put(store, pool, key, value, at_level(durability::volatile_));
}
// As the second half of a value, whose first one is there or not.
reply put_part(store_client::client& store, std::uint32_t pool, const std::string& key, const bytes_t& value) {
  store_client::put_request options;
  options.offset = value.size() / 2;
  return put(store, pool, key, {value.begin() + static_cast<std::ptrdiff_t>(value.size() / 2), value.end()}, options);
}
// Twice in one batch, of which the second takes the place of the first.
reply put_by_batch(store_client::client& store, std::uint32_t pool, const std::string& key, const bytes_t& value,
                   bool atomic) {
  batch_entry entry;
  entry.key = key;
  entry.buffer = memory_of(value);
  batch_settings settings;
  settings.atomic = atomic;
  return store.run_batch(opcode::batch_put, pool, std::vector<batch_entry>{entry, entry}, settings)[0];
}
reply put_batched(store_client::client& store, std::uint32_t pool, const std::string& key, const bytes_t& value) {
  return put_by_batch(store, pool, key, value, false);
}
reply put_atomic(store_client::client& store, std::uint32_t pool, const std::string& key, const bytes_t& value) {
  return put_by_batch(store, pool, key, value, true);
}

struct store_way {
  const char* name;
  path taken;
  bool by_tcp, use_shm, use_rings;
  std::size_t bytes;
  putter put_one;
};

constexpr std::size_t kLong = 10u << 20;  // longer than half of the arena of 16 MiB

// Device memory and UCX have tests of their own kind (gpu_direct_quota_test.cpp, session_ucx_test.cpp).
const store_way kStoreWays[] = {
    {"small", path::unix_socket, false, false, false, 500, put_durable},
    {"small and volatile", path::unix_socket, false, false, false, 500, put_volatile},
    {"rings", path::unix_socket, false, true, true, 500, put_volatile},
    {"mapped memory", path::shm_direct, false, true, false, 300'000, put_durable},
    {"mapped memory, volatile", path::shm_direct, false, true, true, 300'000, put_volatile},
    {"streamed", path::unix_socket, false, false, false, 300'000, put_durable},
    {"streamed and volatile", path::unix_socket, false, false, false, 300'000, put_volatile},
    {"tcp", path::tcp, true, false, false, 500, put_durable},
    {"tcp, streamed", path::tcp, true, false, false, 300'000, put_durable},
    {"longer than memory", path::unix_socket, false, true, true, kLong, put_durable},
    {"part by the socket", path::unix_socket, false, false, false, 300'000, put_part},
    {"part by mapped memory", path::shm_direct, false, true, false, 300'000, put_part},
    {"batch", path::unix_socket, false, false, false, 500, put_batched},
    {"atomic batch", path::tcp, true, false, false, 500, put_atomic},
};

TEST(store_quotas, HoldOnEveryPath) {
  store_rig rig;
  rig.config.arena_bytes = rig.config.chunk_bytes = 16u << 20;
  rig.config.quotas = {"*"};
  rig.start();
  for (const auto& way : kStoreWays) {
    SCOPED_TRACE(way.name);
    auto options = way.by_tcp ? rig.over_tcp() : rig.over_unix();
    options.use_shm = way.use_shm;
    options.use_rings = way.use_rings;
    const auto store = store_rig::open(options);
    const auto other = store_rig::open(way.by_tcp ? rig.over_unix() : rig.over_tcp());
    const std::string mine = way.by_tcp ? "tcp" : own_uid(), theirs = way.by_tcp ? own_uid() : "tcp";
    const auto pool = make_pool(*store, way.name);
    ASSERT_TRUE(other->open_pool(way.name));
    rig.server().engine().set_quotas({{mine, 2 * way.bytes, 0}});
    const auto value = random_value(way.bytes, 1), shorter = random_value(way.bytes - 100, 2);
    const auto first = way.put_one(*store, pool, "1", value);
    ASSERT_EQ(first.status, 0) << first.text;
    EXPECT_EQ(first.result.way, way.taken) << store_protocol::name_of(first.result.way);
    ASSERT_EQ(way.put_one(*store, pool, "2", value).status, 0);
    EXPECT_EQ(held_by(rig, mine), held_t(2, 2 * way.bytes));
    EXPECT_EQ(way.put_one(*store, pool, "3", value).status, EDQUOT);
    EXPECT_EQ(rig.server().engine().stat(pool, "3").code(), ENOENT);
    EXPECT_EQ(way.put_one(*store, pool, "2", value).status, 0) << "as much as before";
    // The other principal puts over it: its bytes are the other's, until they are put over in turn.
    ASSERT_EQ(put(*other, pool, "1", shorter).status, 0);
    EXPECT_EQ(held_by(rig, mine), held_t(1, way.bytes));
    EXPECT_EQ(held_by(rig, theirs), held_t(1, way.bytes - 100));
    ASSERT_EQ(way.put_one(*store, pool, "1", value).status, 0);
    EXPECT_EQ(held_by(rig, theirs), held_t(0, 0));
    EXPECT_EQ(held_by(rig, mine), held_t(2, 2 * way.bytes));
    EXPECT_EQ(store->erase_prefix(pool, "1").status, 0);
    EXPECT_EQ(held_by(rig, mine), held_t(1, way.bytes));
    ASSERT_EQ(store->run(store->make_plain(opcode::pool_delete, 0, way.name)).status, 0);
    EXPECT_EQ(held_by(rig, mine), held_t(0, 0));
  }
}

TEST(store_quotas, SaySoAndAreCountedOverRestarts) {
  store_rig rig;
  rig.config.quotas = {own_uid() + " bytes=1K keys=3", "* bytes=10"};
  rig.start();
  const auto check = [&] {
    const auto store = store_rig::open(rig.over_unix());
    auto pool = store->open_pool("p");
    if (!pool) pool = make_pool(*store, "p");
    ASSERT_EQ(put(*store, *pool, "a", random_value(1000, 1)).status, 0);
    const auto refused = put(*store, *pool, "b", random_value(100, 1));
    EXPECT_EQ(refused.status, EDQUOT);
    for (const auto& part : std::vector<std::string>{own_uid(), "1000 bytes", "1024", "1100"})
      EXPECT_NE(refused.text.find(part), std::string::npos) << refused.text;
    const auto plain = store_rig::open(rig.over_tcp());
    ASSERT_TRUE(plain->open_pool("p"));
    EXPECT_EQ(put(*plain, *pool, "c", random_value(11, 1)).status, EDQUOT);
    EXPECT_EQ(put(*plain, *pool, "c", random_value(10, 1)).status, 0);
    // Limits of keys, in the middle of a batch: what fits is there.
    std::vector<std::string> keys = {"a", "k1", "k2", "k3"};
    const bytes_t one{1};
    std::vector<batch_entry> entries(4);
    for (std::size_t i = 0; i < 4; ++i) entries[i].key = keys[i], entries[i].buffer = memory_of(one);
    batch_settings atomic;
    atomic.atomic = true;
    const auto whole = store->run_batch(opcode::batch_put, *pool, entries, atomic);
    EXPECT_EQ(whole[0].status, ECANCELED);
    EXPECT_EQ(whole[3].status, EDQUOT) << whole[3].text;
    EXPECT_EQ(get(*store, *pool, "a", 1000).size(), 1000u);
    const auto parts = store->run_batch(opcode::batch_put, *pool, entries);
    EXPECT_EQ(parts[2].status, 0) << parts[2].text;
    EXPECT_EQ(parts[3].status, EDQUOT);
    EXPECT_EQ(held_by(rig, own_uid()), held_t(3, 3));
    for (const char* key : {"k1", "k2"}) EXPECT_EQ(store->run(store->make_erase(*pool, key, {})).status, 0);
  };
  check();
  rig.stop();
  rig.start();
  EXPECT_EQ(held_by(rig, own_uid()), held_t(1, 1));
  EXPECT_EQ(held_by(rig, "tcp"), held_t(1, 10));
  check();
}

// A repeated request is answered, whatever its client holds by then.
TEST(store_quotas, ARepeatedPutIsNotRefused) {
  store_rig rig;
  rig.config.quotas = {own_uid() + " keys=1"};
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  for (const std::size_t bytes : {100u, 300'000u}) {
    const auto value = random_value(bytes, 1);
    store_client::put_request options;
    options.number = 1000 + bytes;
    ASSERT_EQ(put(*store, pool, "k", value, options).status, 0);
    const auto again = put(*store, pool, "k", value, options);
    EXPECT_EQ(again.status, 0) << again.text;
    EXPECT_TRUE(again.result.repeated);
    EXPECT_EQ(held_by(rig, own_uid()), held_t(1, bytes));
  }
}

TEST(store_quotas, AreReadAgainAtAReload) {
  store_rig rig;
  rig.config.config_file = rig.directory() + "/config.json";
  const auto write = [&](const char* text) { std::ofstream(rig.config.config_file) << text; };
  write("{}");
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  ASSERT_EQ(put(*store, pool, "before", random_value(5000, 1)).status, 0);
  EXPECT_EQ(held_by(rig, own_uid()), held_t(0, 0)) << "without quotas nobody is counted";
  const auto reload = [&](const std::string& outcome) {
    std::ofstream(rig.config.log, std::ios::app).flush();
    rig.server().reload();
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    for (std::string log; std::chrono::steady_clock::now() < end;
         std::this_thread::sleep_for(std::chrono::milliseconds(5))) {
      std::ifstream file(rig.config.log);
      log.assign(std::istreambuf_iterator<char>(file), {});
      const auto last = log.rfind("quotas_reloaded");
      if (last != std::string::npos && log.find(outcome, last) != std::string::npos) return true;
    }
    return false;
  };
  write(R"({"quotas": ["* bytes=1000"]})");
  ASSERT_TRUE(reload("1 quotas"));
  EXPECT_EQ(put(*store, pool, "a", random_value(1001, 1)).status, EDQUOT) << "on a connection that is open";
  EXPECT_EQ(put(*store, pool, "a", random_value(1000, 1)).status, 0);
  EXPECT_EQ(held_by(rig, own_uid()), held_t(1, 1000)) << "earlier values are nobody's";
  EXPECT_EQ(put(*store, pool, "before", random_value(1, 1)).status, EDQUOT);
  for (const char* wrong : {R"({"quotas": ["* bytes=lots"]})", R"({"quotas": ["*"], "treads": 1})", "{"}) {
    write(wrong);
    ASSERT_TRUE(reload("the earlier ones stay")) << wrong;
    EXPECT_EQ(put(*store, pool, "b", random_value(1, 1)).status, EDQUOT) << wrong;
    std::ofstream(rig.config.log, std::ios::trunc).flush();
  }
  write("{}");
  ASSERT_TRUE(reload("0 quotas"));
  EXPECT_EQ(put(*store, pool, "b", random_value(5000, 1)).status, 0);
  EXPECT_EQ(held_by(rig, own_uid()), held_t(2, 6000)) << "a store that has counted goes on counting";
}

TEST(store_quotas, EachSeesItsOwnFiguresAndAnAdminAll) {
  store_rig rig;
  rig.config.admins = {own_uid()};
  rig.config.quotas = {own_uid() + " keys=100", "* bytes=1K"};
  rig.start();
  const auto admin = store_rig::open(rig.over_unix()), plain = store_rig::open(rig.over_tcp());
  const auto pool = make_pool(*admin, "p");
  ASSERT_TRUE(plain->open_pool("p"));
  ASSERT_EQ(put(*admin, pool, "a", random_value(300, 1)).status, 0);
  ASSERT_EQ(put(*plain, pool, "b", random_value(200, 1)).status, 0);
  ASSERT_EQ(put(*plain, pool, "b", random_value(2000, 1)).status, EDQUOT);
  const std::string all = admin->run(admin->make_plain(opcode::stats, 0, {})).body;
  const std::string mine = "peerlane_store_principal_bytes{principal=\"" + own_uid() + "\"} 300\n";
  const std::string theirs = "peerlane_store_principal_bytes{principal=\"tcp\"} 200\n";
  EXPECT_NE(all.find(mine), std::string::npos) << all;
  EXPECT_NE(all.find(theirs), std::string::npos);
  EXPECT_NE(all.find("peerlane_store_principal_refused_total{principal=\"tcp\"} 1\n"), std::string::npos);
  EXPECT_NE(all.find("peerlane_store_principal_quota_keys{principal=\"" + own_uid() + "\"} 100\n"), std::string::npos);
  const std::string own = plain->run(plain->make_plain(opcode::stats, 0, {})).body;
  EXPECT_EQ(own.find("principal=\"uid:"), std::string::npos);
  EXPECT_NE(own.find(theirs), std::string::npos);
  EXPECT_NE(own.find("peerlane_store_principal_quota_bytes{principal=\"tcp\"} 1024\n"), std::string::npos);
}

// Terms of a copy are for servers, also in the frame that ends what another one has begun.
TEST(store_quotas, AClientThatCommitsAsAServerGainsNothing) {
  store_rig rig;
  rig.config.admins = {"uid:4294967294"};
  rig.config.mappers = {own_uid()};
  rig.config.quotas = {"* bytes=10K"};
  rig.start();
  ASSERT_TRUE(rig.server().engine().create_pool("p", {}));
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = *store->open_pool("p");
  const auto commit_copy = [&](std::uint64_t bytes) {
    const auto grab = store->make_plain(opcode::alloc, pool, "k" + std::to_string(bytes));
    grab->head.value_bytes = bytes;
    const auto granted = store->run(grab);
    EXPECT_EQ(granted.status, 0) << granted.text;
    const auto commit = store->make_plain(opcode::commit, pool, {});
    commit->fields.token = granted.fields->token;
    commit->fields.copy = {1, 1, std::uint64_t{1} << 62, 0};
    commit->fields.owner = "tcp";
    return store->run(commit);
  };
  const auto done = commit_copy(9000);
  ASSERT_EQ(done.status, 0) << done.text;
  EXPECT_LT(done.result.version, std::uint64_t{1} << 62);
  EXPECT_EQ(held_by(rig, own_uid()), held_t(1, 9000));
  EXPECT_EQ(held_by(rig, "tcp"), held_t(0, 0));
}

TEST(store_quotas, LinesSayWhoAndHowMuch) {
  const auto good =
      store_server::parse_quotas({"uid:1000 bytes=10G keys=1M", " cn:A B  keys=5k ", "cert:x://a=b bytes=1", "*"});
  ASSERT_TRUE(good) << good.error().message;
  const auto& list = *good;
  EXPECT_EQ(list[0].name, "uid:1000");
  EXPECT_EQ(list[0].bytes, std::uint64_t{10} << 30);
  EXPECT_EQ(list[0].keys, 1'000'000u);
  EXPECT_EQ(list[1].name, "cn:A B");
  EXPECT_EQ(list[1].keys, 5000u);
  EXPECT_EQ(list[2].name, "cert:x://a=b");
  EXPECT_EQ(list[3].bytes + list[3].keys, 0u);
  const auto of_cluster = store_server::parse_quotas({"uid:7 keys=3 cluster-bytes=2K cluster-keys=1k"});
  ASSERT_TRUE(of_cluster) << of_cluster.error().message;
  EXPECT_EQ((*of_cluster)[0].name, "uid:7");
  EXPECT_EQ((*of_cluster)[0].keys, 3u);
  EXPECT_EQ((*of_cluster)[0].bytes, 0u);
  EXPECT_EQ((*of_cluster)[0].cluster_bytes, 2048u);
  EXPECT_EQ((*of_cluster)[0].cluster_keys, 1000u);
  for (const char* bad : {"", "bytes=1", "alice bytes=1", "uid:1 bytes=", "uid:1 bytes=-1", "uid:1 keys=1.5", "uid:1 keys=x",
                          "uid:1 cluster-keys="}) {
    const auto refused = store_server::parse_quotas({bad});
    ASSERT_EQ(refused.code(), EINVAL) << bad;
    EXPECT_NE(refused.error().message.find("uid:1000 bytes=10G keys=1M"), std::string::npos);
  }
  EXPECT_EQ(store_server::parse_quotas({"tcp keys=1", "tcp keys=2"}).code(), EINVAL);
}

}  // namespace
}  // namespace pl::store_test
