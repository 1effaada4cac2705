// SPDX-License-Identifier: Apache-2.0
// Requests of a router whose answers are lost: they are repeated, and are done once.
#include "test/store/cluster/cluster_rig.hpp"
#include "test/store/server/lossy_relay.hpp"

namespace pl::store_test {
namespace {

using store_client::batch_entry;
using store_protocol::condition;
using store_protocol::opcode;
using store_protocol::precondition;

class cluster_lost_answer : public testing::Test {
 protected:
  void SetUp() override {
    if (!etcd_is_there()) GTEST_SKIP() << kNoEtcd;
    rig_.emplace();
    rig_->advertise = relay_.endpoint();
    rig_->start("a");
    relay_.lead_to(rig_->server("a").config.listen);
    ASSERT_TRUE(rig_->settled({"a"}));
    store_client::router_options options;
    options.servers.push_back(relay_.endpoint());
    options.use_shm = false;
    auto made = store_client::router::open(options);
    ASSERT_TRUE(made) << made.error().message;
    all_ = *std::move(made);
    ASSERT_TRUE(all_->open_pool("none").code() == ENXIO);  // the connection is there
  }
  void TearDown() override {
    all_.reset();
    rig_.reset();
  }
  lossy_relay relay_;
  std::optional<cluster_rig> rig_;
  std::unique_ptr<store_client::router> all_;
};

TEST_F(cluster_lost_answer, APoolIsMadeOnce) {
  relay_.lose_next_answer();
  const auto made = all_->create_pool("p", {});
  EXPECT_TRUE(made) << made.error().message;
  EXPECT_EQ(relay_.lost(), 1u);
  EXPECT_EQ(all_->create_pool("p", {}).code(), EEXIST) << "another request";
  const bytes_t value(10, 1);
  EXPECT_EQ(all_->put(*made, "k", memory_of(value)).status, 0);
}

TEST_F(cluster_lost_answer, ValuesArePutAndErasedOnce) {
  const auto made = all_->create_pool("p", {});
  ASSERT_TRUE(made) << made.error().message;
  const bytes_t value(100, 1);
  store_client::put_request fresh;
  fresh.only = precondition{condition::if_absent, 0};
  ASSERT_EQ(all_->put(*made, "first", memory_of(value), fresh).status, 0);  // the connection knows the pool
  relay_.lose_next_answer();
  const auto put = all_->put(*made, "k", memory_of(value), fresh);
  EXPECT_EQ(put.status, 0) << put.text;
  EXPECT_TRUE(put.result.repeated);
  relay_.lose_next_answer();
  const auto long_value = random_value(3 << 20, 1);
  const auto streamed = all_->put(*made, "long", memory_of(long_value), fresh);
  EXPECT_EQ(streamed.status, 0) << streamed.text;
  store_client::put_request same;
  same.only = precondition{condition::if_version, put.result.version};
  relay_.lose_next_answer();
  const auto later = all_->put(*made, "k", memory_of(value), same);
  EXPECT_EQ(later.status, 0) << later.text;
  relay_.lose_next_answer();
  const auto erased = all_->erase(*made, "k", {});
  EXPECT_EQ(erased.status, 0) << erased.text;
  EXPECT_TRUE(erased.result.repeated);
  EXPECT_EQ(relay_.lost(), 4u);
}

TEST_F(cluster_lost_answer, BatchesAreDoneOnce) {
  const auto made = all_->create_pool("p", {});
  ASSERT_TRUE(made) << made.error().message;
  constexpr std::size_t kCount = 2000;  // several frames
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < kCount; ++i) keys.push_back("key" + std::to_string(i));
  const bytes_t value(100, 1);
  std::vector<batch_entry> entries;
  for (const auto& key : keys) {
    entries.emplace_back().key = key;
    entries.back().buffer = memory_of(value);
    entries.back().only = precondition{condition::if_absent, 0};
  }
  ASSERT_EQ(all_->put(*made, "first", memory_of(value)).status, 0);
  relay_.lose_next_answer();
  for (const auto& one : all_->run_batch(opcode::batch_put, *made, entries)) ASSERT_EQ(one.status, 0) << one.text;
  for (auto& one : entries) one.only.reset();
  relay_.lose_next_answer();
  for (const auto& one : all_->run_batch(opcode::batch_erase, *made, entries)) ASSERT_EQ(one.status, 0) << one.text;
  EXPECT_EQ(relay_.lost(), 2u);
}

// Requests at one server after another, as a router sends them while servers come and go.
TEST_F(cluster_lost_answer, AnyServerKnowsTheRequestThatMadeThePool) {
  rig_->advertise.clear();
  rig_->start("b");
  ASSERT_TRUE(rig_->settled({"a", "b"}));
  const auto a = store_rig::open(rig_->server("a").over_tcp()), b = store_rig::open(rig_->server("b").over_tcp());
  const auto create = [](store_client::client& server, std::optional<store_protocol::sequence> number, unsigned copies) {
    const auto one = server.make_plain(opcode::pool_create, 0, "p");
    one->fields.settings.emplace().copies = static_cast<std::uint8_t>(copies);
    one->fields.request_number = number;
    return server.run(one);
  };
  EXPECT_EQ(create(*a, store_protocol::sequence{7, 1}, 2).status, 0);
  EXPECT_EQ(create(*a, store_protocol::sequence{7, 1}, 2).status, 0);
  const auto second = create(*b, store_protocol::sequence{7, 1}, 2);
  ASSERT_EQ(second.status, 0) << second.text;
  EXPECT_EQ(second.fields->settings->copies, 2);
  for (auto* server : {a.get(), b.get()}) {
    EXPECT_EQ(create(*server, store_protocol::sequence{7, 2}, 2).status, EEXIST);
    EXPECT_EQ(create(*server, store_protocol::sequence{8, 1}, 2).status, EEXIST);
    EXPECT_EQ(create(*server, std::nullopt, 2).status, EEXIST) << "a client of release 0.2.0";
  }
  // A pool of the same name that was made later is another one.
  ASSERT_EQ(b->run(b->make_plain(opcode::pool_delete, 0, "p")).status, 0);
  EXPECT_EQ(create(*b, std::nullopt, 1).status, 0);
  EXPECT_EQ(create(*a, store_protocol::sequence{7, 1}, 2).status, EEXIST);
}

}  // namespace
}  // namespace pl::store_test
