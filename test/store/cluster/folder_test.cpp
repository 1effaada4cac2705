// SPDX-License-Identifier: Apache-2.0
// A server that comes back with another data folder than the one that the cluster knows: it serves nothing of what it does
// not have, says so, is filled by others, and takes up its place again with the right disk.
#include <fstream>
#include <sstream>

#include "test/store/cluster/cluster_rig.hpp"

namespace pl::store_test {
namespace {

constexpr std::uint64_t kKeys = 40;

std::string key_at(std::uint64_t i) { return "key" + std::to_string(i); }

class cluster_folder : public testing::Test {
 protected:
  void SetUp() override {
    if (!etcd_is_there()) GTEST_SKIP() << kNoEtcd;
    rig = std::make_unique<cluster_rig>();
    for (const char* name : {"a", "b"}) rig->start(name);
    ASSERT_TRUE(rig->settled({"a", "b"}));
    const auto all = rig->open();
    two = rig->make_pool(*all, "two", 2);
    lone = rig->make_pool(*all, "lone", 1);
    for (const auto pool : {two, lone})
      for (std::uint64_t i = 0; i < kKeys; ++i) {
        const auto value = random_value(100, i);
        ASSERT_EQ(all->put(pool, key_at(i), memory_of(value)).status, 0);
      }
    const auto map = all->map();
    for (std::uint64_t i = 0; i < kKeys; ++i) {
      if (!lone_of_a && map.units[store_client::unit_of(1, key_at(i))].copies.front() == "a") lone_of_a = i;
      if (!lone_of_b && map.units[store_client::unit_of(1, key_at(i))].copies.front() == "b") lone_of_b = i;
    }
    ASSERT_TRUE(lone_of_a && lone_of_b);
  }

  // Numbers of pools are a router's; those of one opened anew are looked up by name.
  store_client::reply get(store_client::router& cluster, const char* pool, std::uint64_t i, int timeout_ms = -1) {
    const auto pool_id = cluster.open_pool(pool);
    EXPECT_TRUE(pool_id) << pool_id.error().message;
    bytes_t out(200);
    store_client::get_request options;
    options.timeout_ms = timeout_ms;
    auto got = cluster.get(pool_id ? *pool_id : 0, key_at(i), memory_of(out), options);
    out.resize(got.moved_bytes);
    EXPECT_TRUE(got.status != 0 || out == random_value(100, i)) << pool << " " << key_at(i);
    return got;
  }
  std::string log_of(const std::string& name) {
    std::ifstream file(rig->server(name).config.log);
    return (std::stringstream() << file.rdbuf()).str();
  }
  store_cluster::cluster_view now() { return *store_cluster::read_view(rig->etcd().client(), "default"); }
  int accept_loss(const std::string& name) {
#ifdef PL_PROGRAM
    const std::string command =
        std::string(PL_PROGRAM) + " store cluster accept-loss " + name + " --cluster " + rig->etcd().url() + " >/dev/null";
    return std::system(command.c_str());
#else
    auto view = now();
    if (store_cluster::accept_loss(view.map, name, view.alive) == 0) return 1;
    ++view.map.epoch;
    const std::string key = store_cluster::cluster_prefix("default") + "map";
    const auto done = rig->etcd().client().transact({{key, view.map_revision}}, {{key, to_text(view.map), 0, false}});
    return done && *done ? 0 : 1;
#endif
  }

  std::unique_ptr<cluster_rig> rig;
  std::uint32_t two = 0, lone = 0;
  std::optional<std::uint64_t> lone_of_a, lone_of_b;
};

TEST_F(cluster_folder, AnEmptyDiskIsFilledFromCompleteCopies) {
  rig->stop_together({"a", "b"});
  std::filesystem::remove_all(rig->folder("a"));
  rig->start("a");
  ASSERT_TRUE(wait_until(rig->etcd().client(), [](const auto& view) { return view.alive.contains("a"); }));
  const auto some = rig->open();
  for (std::uint64_t i = 0; i < kKeys; ++i) {
    const auto got = get(*some, "two", i, 20);
    ASSERT_NE(got.status, 0);
    ASSERT_NE(got.status, ENOENT) << "emptiness served as truth: " << got.text;
    EXPECT_NE(got.text.find("accept-loss a"), std::string::npos) << got.text;
  }
  // Nor may what was there be made anew.
  const auto value = random_value(100, 99);
  store_client::put_request soon;
  soon.timeout_ms = 100;
  EXPECT_NE(some->put(*some->open_pool("two"), key_at(0), memory_of(value), soon).status, 0);
  EXPECT_NE(log_of("a").find("cluster_other_folder"), std::string::npos);
  const auto direct = store_rig::open(rig->server("a").over_unix());
  const auto answer =
      direct->run(direct->make_plain(store_protocol::opcode::stat, *direct->open_pool("lone"), key_at(*lone_of_a)));
  EXPECT_EQ(answer.status, EAGAIN);
  EXPECT_NE(answer.text.find("data folder"), std::string::npos) << answer.text;
  // Started once more it is none the wiser.
  rig->stop("a");
  rig->start("a");
  EXPECT_NE(get(*rig->open(), "two", 1, 300).status, ENOENT);

  rig->start("b");
  EXPECT_TRUE(wait_until(rig->etcd().client(), [](const auto& view) { return is_settled(view, {"a", "b"}, 2); }));
  const auto all = rig->open();
  for (std::uint64_t i = 0; i < kKeys; ++i) EXPECT_EQ(get(*all, "two", i).status, 0) << i;
  EXPECT_EQ(get(*all, "lone", *lone_of_b).status, 0);
  EXPECT_EQ(get(*all, "lone", *lone_of_a, 300).status, EAGAIN) << "nobody else has it";
  // It is filled: it serves all without the other one.
  rig->stop("b");
  EXPECT_TRUE(wait_until(rig->etcd().client(), [](const auto& view) { return view.alive == std::set<std::string>{"a"}; }));
  for (std::uint64_t i = 0; i < kKeys; ++i) EXPECT_EQ(get(*all, "two", i).status, 0) << i;
}

// One server at a time comes from a release that writes maps without the cluster's number: nobody makes one up as long as
// such a server is there, and then all take the same.
TEST_F(cluster_folder, AnOlderClusterGetsItsNumberOnceAllServersAreUpgraded) {
  const auto& etcd = rig->etcd().client();
  const std::string prefix = store_cluster::cluster_prefix("default"), member = prefix + "member/old";
  const auto write_as_earlier = [&](bool is_there) {
    for (int attempt = 0; attempt < 50; ++attempt) {
      auto view = now();
      view.map.id = 0;
      ++view.map.epoch;
      if (is_there) view.map.servers["old"] = {"127.0.0.1:1", store_client::cluster_server::role::out, false, 7, "", 0, ""};
      else view.map.servers.erase("old");
      const auto done = etcd.transact(
          {{prefix + "map", view.map_revision}},
          {{prefix + "map", to_text(view.map), 0, false}, {member, R"({"endpoint":"127.0.0.1:1","run":7})", 0, !is_there}});
      if (done && *done) return true;
    }
    return false;
  };
  for (const char* name : {"a", "b"}) {
    rig->stop(name);
    std::filesystem::remove(store_cluster::known_cluster_file(rig->folder(name)));  // its release had none
    ASSERT_TRUE(write_as_earlier(true));
    rig->start(name);
    ASSERT_TRUE(wait_until(etcd, [&](const auto& view) { return view.alive.contains(name); }));
  }
  const auto all = rig->open();
  for (std::uint64_t i = 0; i < kKeys; ++i) EXPECT_EQ(get(*all, "two", i).status, 0) << i;
  EXPECT_EQ(now().map.id, 0u);
  ASSERT_TRUE(write_as_earlier(false));
  ASSERT_TRUE(wait_until(etcd, [](const auto& view) { return view.map.id != 0; }));
  const auto id = now().map.id;
  for (std::uint64_t i = 0; i < kKeys; ++i) EXPECT_EQ(get(*all, "two", i).status, 0) << i;
  const auto remembers = [&](const char* name) {
    const auto known = store_cluster::read_known_cluster(rig->folder(name));
    return known && *known && (*known)->id == id;
  };
  EXPECT_TRUE(wait_until(etcd, [&](const auto&) { return remembers("a") && remembers("b"); }));
  for (const char* name : {"a", "b"}) EXPECT_EQ(log_of(name).find("cluster_not_believed"), std::string::npos) << name;
  // Dropped once more (somebody went back), it is the same again.
  ASSERT_TRUE(write_as_earlier(true));
  ASSERT_TRUE(write_as_earlier(false));
  EXPECT_TRUE(wait_until(etcd, [&](const auto& view) { return view.map.id == id; }));
}

TEST_F(cluster_folder, AcceptedLossIsNotFoundAndTheRestIsKept) {
  rig->stop("a");
  std::filesystem::remove_all(rig->folder("a"));
  rig->start("a");
  const auto all = rig->open();
  EXPECT_EQ(get(*all, "lone", *lone_of_a, 300).status, EAGAIN);
  EXPECT_EQ(get(*all, "lone", *lone_of_b).status, 0);
  for (std::uint64_t i = 0; i < kKeys; ++i) EXPECT_EQ(get(*all, "two", i).status, 0) << i << ": the other copy was alive";
  EXPECT_NE(accept_loss("b"), 0) << "b has lost nothing";
  EXPECT_NE(accept_loss("c"), 0);
  EXPECT_EQ(accept_loss("a"), 0);
  EXPECT_EQ(get(*all, "lone", *lone_of_a).status, ENOENT);
  EXPECT_EQ(get(*all, "lone", *lone_of_b).status, 0);
  EXPECT_TRUE(rig->settled({"a", "b"}));
  const auto value = random_value(100, *lone_of_a);
  const auto pool = all->open_pool("lone");
  EXPECT_EQ(all->put(*pool, key_at(*lone_of_a), memory_of(value)).status, 0);
  EXPECT_EQ(get(*all, "lone", *lone_of_a).status, 0);
  EXPECT_NE(accept_loss("a"), 0) << "there is nothing left to give up";
}

TEST_F(cluster_folder, TheRightDiskTakesUpItsPlaceAgain) {
  rig->stop_together({"a", "b"});
  rig->put_disk_aside("a");
  rig->start("a");
  const auto some = rig->open();
  EXPECT_EQ(get(*some, "lone", *lone_of_a, 300).status, EAGAIN);
  rig->stop("a");
  rig->put_disk_back("a");
  rig->start("a");
  // Alone: it was complete when all of them went.
  const auto all = rig->open();
  for (std::uint64_t i = 0; i < kKeys; ++i) EXPECT_EQ(get(*all, "two", i).status, 0) << i;
  EXPECT_EQ(get(*all, "lone", *lone_of_a).status, 0);
  rig->start("b");
  EXPECT_TRUE(rig->settled({"a", "b"}));
  EXPECT_EQ(get(*all, "lone", *lone_of_b).status, 0);
}

TEST_F(cluster_folder, AMapWithoutIdentitiesAcceptsAFolderWithTheClustersPools) {
  rig->stop_together({"a", "b"});
  const auto forget_identities = [&] {
    auto view = now();
    for (auto& [name, one] : view.map.servers) one.folder.clear();
    ++view.map.epoch;
    const std::string key = store_cluster::cluster_prefix("default") + "map";
    ASSERT_TRUE(*rig->etcd().client().transact({{key, view.map_revision}}, {{key, to_text(view.map), 0, false}}));
  };
  forget_identities();
  rig->start("a");
  EXPECT_EQ(get(*rig->open(), "lone", *lone_of_a).status, 0);
  EXPECT_EQ(now().map.servers.at("a").folder, rig->server("a").server().engine().identity());
  EXPECT_EQ(log_of("a").find("cluster_other_folder"), std::string::npos);
  // A server from before writes the map: the identity comes back by itself.
  forget_identities();
  EXPECT_TRUE(wait_until(rig->etcd().client(), [](const auto& view) { return !view.map.servers.at("a").folder.empty(); }));
  rig->stop("a");
  forget_identities();
  std::filesystem::remove_all(rig->folder("a"));
  rig->start("a");
  EXPECT_EQ(get(*rig->open(), "lone", *lone_of_a, 300).status, EAGAIN);
  EXPECT_NE(log_of("a").find("cluster_other_folder"), std::string::npos);
}

// ---- An etcd without the cluster's data

// Every server that has been in the cluster says so and keeps its values.
void expect_refused(cluster_rig& rig, const std::vector<std::string>& names, const std::string& reason) {
  for (const auto& name : names) {
    rig.stop(name);
    auto settings = rig.server(name).config;
    const auto refused = store_server::server::open(settings);
    EXPECT_EQ(refused.code(), EUCLEAN);
    EXPECT_NE(refused.error().message.find(reason), std::string::npos) << refused.error().message;
    EXPECT_NE(refused.error().message.find("remove " + settings.data + "/cluster.json"), std::string::npos);
    settings.cluster.clear();  // alone it shows what it has
    rig.server(name).config.cluster.clear();
    rig.server(name).start();
    const auto alone = store_rig::open(rig.server(name).over_unix());
    const auto pool = alone->open_pool("p");
    ASSERT_TRUE(pool) << name << ": " << pool.error().message;
    for (int i = 0; i < 20; ++i)
      EXPECT_EQ(get(*alone, *pool, "key" + std::to_string(i), 3000), random_value(3000, 1)) << name;
    rig.stop(name);
  }
}

void fill(cluster_rig& rig) {
  for (const char* name : {"a", "b"}) rig.start(name);
  ASSERT_TRUE(rig.settled({"a", "b"}));
  const auto all = rig.open();
  const auto pool = rig.make_pool(*all, "p", 2);
  for (int i = 0; i < 20; ++i) ASSERT_EQ(put(*all, pool, "key" + std::to_string(i), random_value(3000, 1)).status, 0);
  std::this_thread::sleep_for(std::chrono::seconds(2));  // they remember at most once a second
}

TEST_F(cluster_folder, AnEtcdThatLostItsDataDeletesNothing) {
  cluster_rig rig;
  fill(rig);
  rig.etcd().stop();
  std::filesystem::remove_all(rig.etcd().data());
  rig.etcd().start();
  ASSERT_TRUE(rig.etcd().wait_until_it_answers());
  std::this_thread::sleep_for(std::chrono::seconds(3 * kLeaseSeconds));
  const auto view = store_cluster::read_view(rig.etcd().client(), "default");
  EXPECT_TRUE(view && view->map.epoch == 0) << "a server that knows better has begun a new cluster";
  const auto one = rig.open(300);
  if (const auto pool = one->open_pool("p")) { EXPECT_NE(put(*one, *pool, "key0", random_value(10, 2)).status, 0); }
  expect_refused(rig, {"a", "b"}, "has no such cluster");
}

// Servers that never were in it may begin one there; those that were do not take it for theirs.
TEST_F(cluster_folder, AnotherClusterOfTheSameNameDeletesNothing) {
  cluster_rig rig;
  fill(rig);
  for (const char* name : {"a", "b"}) rig.stop(name);
  rig.etcd().stop();
  std::filesystem::remove_all(rig.etcd().data());
  rig.etcd().start();
  ASSERT_TRUE(rig.etcd().wait_until_it_answers());
  rig.start("new");
  ASSERT_TRUE(rig.settled({"new"}));
  rig.make_pool(*rig.open(), "q", 1);
  expect_refused(rig, {"a", "b"}, "is not the one that this server's folder belongs to");
  // Whoever removes the file believes etcd.
  std::filesystem::remove(rig.folder("a") / "cluster.json");
  rig.start("a");
  EXPECT_TRUE(rig.settled({"a", "new"}));
}

TEST_F(cluster_folder, AnOlderStateOfEtcdDeletesNoPoolThatItDoesNotKnow) {
  cluster_rig rig;
  rig.start("a");
  ASSERT_TRUE(rig.settled({"a"}));
  rig.stop("a");
  rig.etcd().stop();
  const std::string kept = rig.etcd().data() + ".kept";
  std::filesystem::copy(rig.etcd().data(), kept, std::filesystem::copy_options::recursive);
  rig.etcd().start();
  ASSERT_TRUE(rig.etcd().wait_until_it_answers());
  fill(rig);
  rig.etcd().stop();
  std::filesystem::remove_all(rig.etcd().data());
  std::filesystem::rename(kept, rig.etcd().data());
  rig.etcd().start();
  ASSERT_TRUE(rig.etcd().wait_until_it_answers());
  std::this_thread::sleep_for(std::chrono::seconds(2 * kLeaseSeconds));
  expect_refused(rig, {"a", "b"}, "older");
}

// A path is bytes, and the cluster's map is JSON.
TEST(cluster_folder_name, APathThatIsNotUtf8IsServed) {
  if (!etcd_is_there()) GTEST_SKIP() << kNoEtcd;
  cluster_rig rig;
  store_rig odd;
  odd.config.cluster = {rig.etcd().url()};
  odd.config.name = "a";
  odd.config.lease_s = kLeaseSeconds;
  odd.config.data = odd.directory() + "/\xff\xfe data";
  odd.start();
  ASSERT_TRUE(rig.settled({"a"}));
  store_client::router_options options;
  options.servers = {odd.config.listen};
  options.timeout_ms = 20'000;
  const auto clients = store_client::router::open(options);
  ASSERT_TRUE(clients) << clients.error().message;
  const auto pool = rig.make_pool(**clients, "p", 1);
  const auto value = random_value(100, 1);
  EXPECT_EQ((*clients)->put(pool, "k", memory_of(value)).status, 0);
}

}  // namespace
}  // namespace pl::store_test
