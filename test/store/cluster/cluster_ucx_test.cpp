// SPDX-License-Identifier: Apache-2.0
// A cluster's client with UCX transports, forced over whatever UCX finds here: large values go by the UCX transport of
// whichever server has the key, also around the death of one while they travel.
#include <atomic>

#include "store/client/ucx_value_stream.hpp"
#include "test/store/cluster/cluster_rig.hpp"

namespace pl::store_test {
namespace {

using store_client::router;
using store_protocol::path;

constexpr std::size_t kLarge = 3u << 20;

// Why there can be no UCX transport here; empty: there can.
std::string ucx_refusal() {
  store_client::ucx_value_stream::options options;
  options.mode = store_client::ucx_mode::on;
  const auto tried = store_client::ucx_value_stream::open(std::move(options));
  return tried ? "" : tried.error().message;
}

class store_cluster_ucx : public testing::Test {
 protected:
  void SetUp() override {
    if (!etcd_is_there()) GTEST_SKIP() << kNoEtcd;
    if (const auto reason = ucx_refusal(); !reason.empty()) GTEST_SKIP() << reason;
    setenv("PEERLANE_STORE_UCX", "on", 1);
  }
  void TearDown() override { unsetenv("PEERLANE_STORE_UCX"); }
  static std::unique_ptr<router> open(cluster_rig& rig, unsigned timeout_ms) {
    store_client::router_options options;
    options.servers = {rig.server("a").config.listen};
    options.timeout_ms = timeout_ms;
    options.use_shm = false;
    auto made = router::open(options);
    EXPECT_TRUE(made) << made.error().message;
    return made ? *std::move(made) : nullptr;
  }
};

std::string key_of(unsigned i) { return "key" + std::to_string(i); }

// The error in the key's value or in its path; empty if none.
std::string read_back(router& cluster, std::uint32_t pool, unsigned i) {
  bytes_t out(kLarge + 1);
  const auto got = cluster.get(pool, key_of(i), memory_of(out));
  if (got.status != 0) return key_of(i) + ": " + got.text;
  out.resize(got.moved_bytes);
  if (out != random_value(kLarge, i)) return key_of(i) + " has other bytes";
  return got.result.way == path::ucx ? "" : key_of(i) + " came by " + store_protocol::name_of(got.result.way);
}

TEST_F(store_cluster_ucx, LargeValuesGoByTheUcxTransportOfWhoeverHasThem) {
  cluster_rig rig;
  rig.ucx = "on";
  for (const char* name : {"a", "b"}) rig.start(name);
  ASSERT_TRUE(rig.settled({"a", "b"}));
  const auto all = open(rig, 30'000);
  ASSERT_NE(all, nullptr);
  const auto pool = rig.make_pool(*all, "p", 1), both = rig.make_pool(*all, "both", 2);
  for (unsigned i = 0; i < 8; ++i) {
    const auto value = random_value(kLarge, i);
    for (const auto& [target, copies] : {std::pair(pool, 1), std::pair(both, 2)}) {
      const auto done = all->put(target, key_of(i), memory_of(value));
      ASSERT_EQ(done.status, 0) << done.text;
      EXPECT_EQ(done.result.way, path::ucx);
      EXPECT_EQ(done.result.copies, copies);
      EXPECT_FALSE(done.fields->ucx_transports.value_or("").empty());
      EXPECT_EQ(read_back(*all, target, i), "");
    }
  }
  for (const char* name : {"a", "b"})  // both took some: the keys are spread
    EXPECT_GT(rig.server(name).server().engine().stats().gets, 0u) << name;
  const auto small = random_value(100'000, 1);
  EXPECT_EQ(all->put(pool, "small", memory_of(small)).result.way, path::tcp);
}

#ifdef PL_PROGRAM

TEST_F(store_cluster_ucx, AServerIsKilledWhileValuesTravel) {
  cluster_rig rig;
  rig.ucx = "on";
  rig.start("a");
  const test::reserved_port reserved;
  const std::string folder = rig.server("a").directory(), port = reserved.text();
  const auto serve_b = [&] {
    return std::make_unique<child_process>(std::vector<std::string>{PL_PROGRAM,
                                                                    "store",
                                                                    "serve",
                                                                    "--data",
                                                                    folder + "/b",
                                                                    "--listen",
                                                                    "127.0.0.1:" + port,
                                                                    "--cluster",
                                                                    rig.etcd().url(),
                                                                    "--name",
                                                                    "b",
                                                                    "--lease-s",
                                                                    std::to_string(kLeaseSeconds),
                                                                    "--repair-s",
                                                                    "0",
                                                                    "--ucx",
                                                                    "on",
                                                                    "--arena",
                                                                    "64MiB",
                                                                    "--admins",
                                                                    "uid:0,tcp"},
                                           folder + "/b.log");
  };
  auto b = serve_b();
  ASSERT_TRUE(rig.settled({"a", "b"}));
  const auto all = open(rig, 90'000);
  ASSERT_NE(all, nullptr);
  const auto pool = rig.make_pool(*all, "p", 2);
  constexpr unsigned kKeys = 6;
  for (unsigned i = 0; i < kKeys; ++i) {
    const auto value = random_value(kLarge, i);
    ASSERT_EQ(all->put(pool, key_of(i), memory_of(value)).result.way, path::ucx);
  }
  std::atomic<bool> stop{false};
  std::atomic<unsigned> puts{0};
  std::string problem;
  std::thread writer([&] {
    const auto mine = open(rig, 90'000);
    const auto pool_id = mine->open_pool("p");
    for (unsigned i = 0; !stop && pool_id; ++i) {
      const auto value = random_value(kLarge, i % kKeys);
      const auto done = mine->put(*pool_id, key_of(i % kKeys), memory_of(value));
      if (done.status != 0) return void(problem = done.text);
      ++puts;
    }
  });
  const auto more_puts = [&](unsigned many) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (const unsigned before = puts; puts < before + many && std::chrono::steady_clock::now() < deadline;)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  more_puts(5);
  b->end(SIGKILL);
  // Gets go on by the other's UCX transport when it has taken over; puts wait until there are two servers again.
  for (unsigned i = 0; i < kKeys; ++i) EXPECT_EQ(read_back(*all, pool, i), "");
  b = serve_b();
  more_puts(5);
  stop = true;
  writer.join();
  EXPECT_EQ(problem, "");
  EXPECT_GE(puts, 10u);
  ASSERT_TRUE(rig.settled({"a", "b"}));
  for (unsigned i = 0; i < kKeys; ++i) EXPECT_EQ(read_back(*all, pool, i), "") << "a UCX transport again, to b too";
}

#endif

}  // namespace
}  // namespace pl::store_test
