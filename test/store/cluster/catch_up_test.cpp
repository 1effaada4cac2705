// SPDX-License-Identifier: Apache-2.0
// Copies that are brought up to date, and connections to other servers, where threads are missing. The other server is an
// address without a listener.
#include "store/cluster/catch_up.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "test/support/scarce_threads.hpp"

namespace pl::store_cluster {
namespace {

constexpr unsigned kUnit = 5;

TEST(peer_links, AMissingThreadIsReportedAndTheNextCallRetries) {
  peer_links links(store_client::address{}, 1000);
  const peer_name peer{"x", "127.0.0.1:1", 5};
  std::atomic<int> first{0}, second{0};
  {
    const test::scarce_threads none;
    links.reach(peer, "p", [&](const result<peer_pool>& target) { first = target.code(); });
  }
  EXPECT_EQ(first, EAGAIN) << "told within the call";
  links.reach(peer, "p", [&](const result<peer_pool>& target) { second = target.code(); });
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (second == 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(second, ECONNREFUSED);
  EXPECT_EQ(first, EAGAIN) << "once";
}

class catch_up_here : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "peerlane-catch-up-test-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    store::engine_options options;
    options.directory = folder_ + "/data";
    options.arena_bytes = options.chunk_bytes = 16u << 20;
    auto opened = store::engine::open(options);
    ASSERT_TRUE(opened) << opened.error().message;
    engine_ = *std::move(opened);
  }
  void TearDown() override {
    engine_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string folder_;
  std::unique_ptr<store::engine> engine_;
};

TEST_F(catch_up_here, AMissingThreadIsLoggedAndTheNextCheckRetries) {
  std::mutex lock;
  std::vector<std::string> said;
  const cluster_pools pools(*engine_);
  key_serializer serializer;
  peer_links links(store_client::address{}, 1000);
  replicator copies(*engine_, links, "me", 60'000'000'000);
  catch_up filler(*engine_, pools, serializer, links, copies, "me", [&](const char* event, const std::string& text) {
    const std::lock_guard hold(lock);
    said.push_back(std::string(event) + " " + text);
  });
  auto seen = std::make_shared<cluster_view>();
  seen->map.epoch = 10;
  seen->map_revision = 10;
  seen->map.servers["me"].run = 1;
  seen->map.servers["x"].endpoint = "127.0.0.1:1";
  seen->map.servers["x"].run = 5;
  seen->map.units[kUnit] = {{"me"}, {"x"}};
  seen->alive = {"me", "x"};
  copies.act_by(seen, true, 1);
  {
    const test::scarce_threads none;
    filler.act_by(seen, true, 1);
  }
  {
    const std::lock_guard hold(lock);
    ASSERT_EQ(said.size(), 1u);
    EXPECT_NE(said[0].find("cluster_fill_failed x: the thread that fills a copy"), std::string::npos) << said[0];
  }
  filler.act_by(seen, true, 1);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  const auto has_tried = [&] {
    const std::lock_guard hold(lock);
    return said.size() > 1;
  };
  while (!has_tried() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(has_tried());
  copies.act_by(std::make_shared<cluster_view>(), false, 0);
  filler.stop();
  links.stop();
}

}  // namespace
}  // namespace pl::store_cluster
