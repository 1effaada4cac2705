// SPDX-License-Identifier: Apache-2.0
// Requests to a single server whose answers are lost.
#include "test/store/server/lossy_relay.hpp"
#include "test/store/server/store_rig.hpp"

namespace pl::store_test {
namespace {

using store_protocol::condition;
using store_protocol::opcode;
using store_protocol::precondition;

class lost_answer : public testing::Test {
 protected:
  void SetUp() override {
    rig_.start();
    relay_.lead_to(rig_.config.listen);
    store_client::client_options options;
    options.server.endpoint = relay_.endpoint();
    client_ = store_rig::open(options);
    pool_ = make_pool(*client_, "p");
  }
  void TearDown() override { client_.reset(); }
  store_rig rig_;
  lossy_relay relay_;
  std::unique_ptr<store_client::client> client_;
  std::uint32_t pool_ = 0;
};

TEST_F(lost_answer, RequestsAreDoneOnce) {
  const bytes_t value(100, 1);
  store_client::put_request fresh;
  fresh.only = precondition{condition::if_absent, 0};
  relay_.lose_next_answer();
  const auto first = put(*client_, pool_, "k", value, fresh);
  EXPECT_EQ(first.status, 0) << first.text;
  EXPECT_TRUE(first.result.repeated);
  store_client::put_request same, part;
  same.only = precondition{condition::if_version, first.result.version};
  relay_.lose_next_answer();
  const auto second = put(*client_, pool_, "k", value, same);
  EXPECT_EQ(second.status, 0) << second.text;
  part.offset = 10;
  relay_.lose_next_answer();
  const auto third = put(*client_, pool_, "k", bytes_t(20, 2), part);
  EXPECT_EQ(third.status, 0) << third.text;
  EXPECT_EQ(third.result.version, second.result.version + 1);
  relay_.lose_next_answer();
  const auto erased = client_->run(client_->make_erase(pool_, "k", {}));
  EXPECT_EQ(erased.status, 0) << erased.text;
  EXPECT_EQ(relay_.lost(), 4u);
}

TEST_F(lost_answer, AtomicBatchesAreDoneOnce) {
  const bytes_t value(100, 1);
  std::vector<store_client::batch_entry> entries(2);
  entries[0].key = "a", entries[1].key = "b";
  for (auto& one : entries) one.buffer = memory_of(value), one.only = precondition{condition::if_absent, 0};
  store_client::batch_settings all_or_nothing;
  all_or_nothing.atomic = true;
  relay_.lose_next_answer();
  for (const auto& one : client_->run_batch(opcode::batch_put, pool_, entries, all_or_nothing))
    EXPECT_EQ(one.status, 0) << one.text;
  for (auto& one : entries) one.only.reset();
  relay_.lose_next_answer();
  for (const auto& one : client_->run_batch(opcode::batch_erase, pool_, entries, all_or_nothing))
    EXPECT_EQ(one.status, 0) << one.text;
  EXPECT_EQ(relay_.lost(), 2u);
}

// They are not repeated: a name does not say which of two pools is meant.
TEST_F(lost_answer, PoolsAreNotMadeOrDeletedTwice) {
  for (const opcode op : {opcode::pool_create, opcode::pool_delete}) {
    relay_.lose_next_answer();
    const auto got = client_->run(client_->make_plain(op, 0, "q"));
    EXPECT_EQ(got.status, ECONNRESET);
    EXPECT_NE(got.text.find("whether it was done is not known"), std::string::npos) << got.text;
    EXPECT_EQ(client_->open_pool("q").code(), op == opcode::pool_create ? 0 : ENXIO);
  }
}

}  // namespace
}  // namespace pl::store_test
