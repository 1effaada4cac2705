// SPDX-License-Identifier: Apache-2.0
// When a change may end without a copy that does not accept it. The copy is an address without a listener.
#include "store/cluster/replicator.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

namespace pl::store_cluster {
namespace {

constexpr unsigned kReplicatedUnit = 5;  // of pools with one copy: a change may end with this server's own

class replicator_ends : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "peerlane-replicator-test-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    store::engine_options options;
    options.directory = folder_ + "/data";
    options.arena_bytes = options.chunk_bytes = 16u << 20;
    auto opened = store::engine::open(options);
    ASSERT_TRUE(opened) << opened.error().message;
    engine_ = *std::move(opened);
    const auto pool = engine_->create_pool("p", {});
    ASSERT_TRUE(pool);
    const auto put = engine_->put(pool->id, "k", std::as_bytes(std::span("value")));
    ASSERT_TRUE(put);
    change_.pool = pool->id;
    change_.pool_name = "p";
    change_.key = "k";
    change_.unit = kReplicatedUnit;
    change_.version = put->version;
    links_ = std::make_unique<peer_links>(store_client::address{}, 1000);
    copies_ = std::make_unique<replicator>(*engine_, *links_, "me", 60'000'000'000);
  }
  void TearDown() override {
    if (!copies_) return;
    copies_->act_by(std::make_shared<cluster_view>(), false, 0);  // ends what is under way
    links_->stop();
    copies_.reset();
    engine_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  static view_ptr view(std::int64_t revision, std::vector<std::string> copies, std::vector<std::string> joining) {
    auto out = std::make_shared<cluster_view>();
    out->map.epoch = static_cast<std::uint64_t>(revision);
    out->map_revision = revision;
    out->map.servers["me"].run = 1;
    out->map.servers["x"].endpoint = "127.0.0.1:1";
    out->map.servers["x"].run = 5;
    out->map.units[kReplicatedUnit] = {std::move(copies), std::move(joining)};
    return out;
  }
  void spread() {
    copies_->spread(change_, [this](const result<unsigned>& outcome) {
      outcome_ = outcome ? static_cast<int>(*outcome) : -outcome.code();
    });
  }
  // Looks at the view again and again, as a server does, until the copy was tried some more times or the change has ended.
  int tried(const view_ptr& now) {
    const std::uint64_t wanted = copies_->failed + 3;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (outcome_ == 0 && copies_->failed < wanted && std::chrono::steady_clock::now() < deadline) {
      copies_->act_by(now, true, 1);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return outcome_;
  }

  std::string folder_;
  std::unique_ptr<store::engine> engine_;
  std::unique_ptr<peer_links> links_;
  std::unique_ptr<replicator> copies_;
  change change_;
  std::atomic<int> outcome_{0};  // number of servers, or the error below zero
};

TEST_F(replicator_ends, IgnoresACopyThatFailsDuringCatchUp) {
  const auto now = view(10, {"me"}, {"x"});
  copies_->act_by(now, true, 1);
  const auto number = copies_->begin_catch_up(kReplicatedUnit, "x");
  EXPECT_TRUE(copies_->fills(kReplicatedUnit, "x", number));
  spread();
  EXPECT_EQ(tried(now), 1);
  EXPECT_FALSE(copies_->fills(kReplicatedUnit, "x", number));
  EXPECT_FALSE(copies_->promise(kReplicatedUnit, "x", number, 10)) << "it is not complete any more";
  // A job that was late, or one for another run, begins again: the first one has missed a change all the same.
  const auto other = copies_->begin_catch_up(kReplicatedUnit, "x");
  EXPECT_FALSE(copies_->fills(kReplicatedUnit, "x", number));
  EXPECT_FALSE(copies_->promise(kReplicatedUnit, "x", number, 10));
  copies_->end_catch_up(kReplicatedUnit, "x", number);
  EXPECT_TRUE(copies_->promise(kReplicatedUnit, "x", other, 10));
}

TEST_F(replicator_ends, WaitsWhileTheMapMayListTheCopyAsComplete) {
  const auto now = view(10, {"me"}, {"x"});
  copies_->act_by(now, true, 1);
  ASSERT_TRUE(copies_->promise(kReplicatedUnit, "x", copies_->begin_catch_up(kReplicatedUnit, "x"), 10));
  spread();
  EXPECT_EQ(tried(now), 0) << "acknowledged without a copy that may be complete in the map by now";
  EXPECT_EQ(tried(view(11, {"me", "x"}, {})), 0) << "it is";
  EXPECT_EQ(tried(view(12, {"me"}, {})), 1) << "it was voted out";
}

TEST_F(replicator_ends, RetriesOnceAnotherMapChangeCameFirst) {
  copies_->act_by(view(10, {"me"}, {"x"}), true, 1);
  ASSERT_TRUE(copies_->promise(kReplicatedUnit, "x", copies_->begin_catch_up(kReplicatedUnit, "x"), 10));
  spread();
  EXPECT_EQ(tried(view(10, {"me"}, {"x"})), 0);
  EXPECT_EQ(tried(view(11, {"me"}, {"x"})), 1) << "somebody else's change came first: it is not complete";
}

}  // namespace
}  // namespace pl::store_cluster
