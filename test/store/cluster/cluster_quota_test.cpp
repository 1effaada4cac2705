// SPDX-License-Identifier: Apache-2.0
// Quotas of principals over all servers of a cluster: what they bound, and by how much it may be more.
#include <atomic>
#include <chrono>
#include <thread>

#include "store/cluster/held_reports.hpp"
#include "test/store/cluster/cluster_rig.hpp"

namespace pl::store_test {
namespace {

using store_client::batch_entry;
using store_client::reply;
using store_client::router;
using store_protocol::opcode;

TEST(cluster_quota_reports, ComeBackFromTheirText) {
  const std::vector<store::owner_held> held = {{"uid:1000", 5, 1ull << 40}, {"cn:A \"B\" \xc3\xa4", 0, 7}};
  const auto back = store_cluster::read_held(store_cluster::to_text(held));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(*back, held);
  for (const char* bad : {"", "{}", "[1]", "[[\"a\",1]]", "[[\"a\",-1,2]]", "[[1,1,1]]", "[[\"a\",1,2]"})
    EXPECT_EQ(store_cluster::read_held(bad).code(), EPROTO) << bad;
}

class cluster_quotas : public testing::Test {
 protected:
  static constexpr std::uint64_t kLimit = 300;
  void SetUp() override {
    if (!etcd_is_there()) GTEST_SKIP() << kNoEtcd;
    rig_.quotas = {"* cluster-keys=" + std::to_string(kLimit)};
    for (const char* name : {"a", "b", "c"}) rig_.start(name);
    ASSERT_TRUE(rig_.settled({"a", "b", "c"}));
  }
  std::uint64_t held(const std::string& server) {
    const auto list = rig_.server(server).server().engine().list_owners();
    return list.empty() ? 0 : list.front().keys;
  }
  // Every server has heard what the others hold now.
  void wait_for_reports(const std::vector<std::string>& servers) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (const auto& name : servers)
      for (;;) {
        std::uint64_t others = 0;
        for (const auto& other : servers) others += other == name ? 0 : held(other);
        const auto list = rig_.server(name).server().engine().list_owners();
        if (others == 0 || (!list.empty() && list.front().elsewhere_keys == others)) break;
        ASSERT_LT(std::chrono::steady_clock::now(), end) << name;
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
  }
  // The number of those that were taken.
  static std::size_t put(router& all, std::uint32_t pool, const std::string& prefix, std::size_t count, int& other_errors) {
    const auto value = random_value(50, 1);
    std::vector<std::string> keys;
    for (std::size_t i = 0; i < count; ++i) keys.push_back(prefix + std::to_string(i));
    std::vector<batch_entry> list(count);
    for (std::size_t i = 0; i < count; ++i) list[i].key = keys[i], list[i].buffer = memory_of(value);
    std::size_t taken = 0;
    for (const reply& one : all.run_batch(opcode::batch_put, pool, list)) {
      taken += one.status == 0 ? 1 : 0;
      other_errors += one.status != 0 && one.status != EDQUOT ? 1 : 0;
    }
    return taken;
  }
  cluster_rig rig_;
};

TEST_F(cluster_quotas, BoundWhatAllServersHoldTogether) {
  const auto all = rig_.open();
  const auto pool = rig_.make_pool(*all, "p", 1);
  int errors = 0;
  // Slowly: as much as the limit says.
  ASSERT_EQ(put(*all, pool, "first/", 240, errors), 240u);
  wait_for_reports({"a", "b", "c"});
  // At once: each server may give what was left when it heard of the others last, so at most that much for each of them.
  const std::size_t more = put(*all, pool, "second/", 900, errors);
  EXPECT_GE(more, 60u);
  EXPECT_LE(more, 3 * 60u);
  wait_for_reports({"a", "b", "c"});
  EXPECT_EQ(put(*all, pool, "third/", 300, errors), 0u);
  EXPECT_EQ(all->put(pool, "first/0", memory_of(random_value(60, 2))).status, 0) << "no key more";
  // What is erased on one server makes room on the others.
  for (int i = 0; i < 200; ++i) ASSERT_EQ(all->erase(pool, "first/" + std::to_string(i)).status, 0);
  wait_for_reports({"a", "b", "c"});
  EXPECT_GT(put(*all, pool, "fourth/", 30, errors), 0u);
  EXPECT_EQ(errors, 0);
}

// A server that is away holds what it said last; one that starts knows what the others hold before it takes anything.
TEST_F(cluster_quotas, IncludeServersThatAreAwayOrStarting) {
  const auto all = rig_.open();
  const auto pool = rig_.make_pool(*all, "p", 1);
  int errors = 0;
  ASSERT_EQ(put(*all, pool, "k", kLimit, errors), kLimit);
  wait_for_reports({"a", "b", "c"});
  const std::uint64_t of_b = held("b");
  ASSERT_GT(of_b, 50u);
  rig_.stop("b");
  const auto list = rig_.server("a").server().engine().list_owners();
  EXPECT_GE(list.front().elsewhere_keys, of_b);
  std::this_thread::sleep_for(2 * store_cluster::held_reports::kPeriod);
  EXPECT_EQ(rig_.server("a").server().engine().list_owners().front().elsewhere_keys, list.front().elsewhere_keys);
  rig_.start("b");
  const auto back = rig_.server("b").server().engine().list_owners();
  ASSERT_FALSE(back.empty());
  EXPECT_EQ(back.front().keys + back.front().elsewhere_keys, kLimit);
  ASSERT_TRUE(rig_.settled({"a", "b", "c"}));
  EXPECT_EQ(put(*all, pool, "more", 100, errors), 0u);
  EXPECT_EQ(errors, 0);
}

}  // namespace
}  // namespace pl::store_test
