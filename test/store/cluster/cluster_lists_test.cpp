// SPDX-License-Identifier: Apache-2.0
// What a router asks of all servers, with an old map and while servers go, and the time that its calls take while servers do
// not answer.
#include <chrono>

#include "store/client/router_tries.hpp"
#include "test/store/cluster/cluster_rig.hpp"
#include "test/store/server/loopback_listener.hpp"

namespace pl::store_test {
namespace {

using store_client::batch_entry;
using store_client::router;
using store_protocol::opcode;

constexpr std::size_t kCount = 400;

// Accepts connections, as the kernel does for a stopped process, and never answers.
class silent_listener : public loopback_listener {
 public:
  silent_listener() : loopback_listener(256) {}
};

class cluster_lists : public testing::Test {
 protected:
  void SetUp() override {
    if (!etcd_is_there()) GTEST_SKIP() << kNoEtcd;
  }
  static std::set<std::string> names() {
    std::set<std::string> out;
    for (std::size_t i = 0; i < kCount; ++i) out.insert("key" + std::to_string(i));
    return out;
  }
  static void put_all(router& all, std::uint32_t pool) {
    const bytes_t value(10, 1);
    for (const auto& key : names()) ASSERT_EQ(all.put(pool, key, memory_of(value)).status, 0);
  }
  // All pages.
  static std::set<std::string> keys_of(router& all, std::uint32_t pool) {
    std::set<std::string> out;
    store_client::key_search search;
    search.limit = 100;
    for (bool more = true; more;) {
      const auto page = all.find(pool, search);
      EXPECT_EQ(page.status, 0) << page.text;
      const auto keys = store_protocol::decode_keys(page.body);
      if (page.status != 0 || !keys) break;
      for (const auto& one : *keys) EXPECT_TRUE(out.insert(one.key).second) << one.key;
      more = page.more;
      search.after = page.fields->after.value_or("");
    }
    return out;
  }
};

TEST_F(cluster_lists, AnOldMapMissesNoKeys) {
  cluster_rig rig;
  for (const char* name : {"a", "b"}) rig.start(name);
  ASSERT_TRUE(rig.settled({"a", "b"}));
  const auto first = rig.open(), second = rig.open(), third = rig.open();
  const auto pool = rig.make_pool(*first, "p", 2);
  const auto same = second->open_pool("p"), also = third->open_pool("p");
  ASSERT_TRUE(same && also);
  put_all(*first, pool);
  rig.start("c");
  ASSERT_TRUE(rig.settled({"a", "b", "c"}));
  // They do not know of the third server, which has a third of the keys now.
  EXPECT_EQ(first->sync(pool).status, 0);
  EXPECT_EQ(keys_of(*second, *same), names());
  const auto erased = third->erase_prefix(*also, "key");
  EXPECT_EQ(erased.status, 0) << erased.text;
  EXPECT_EQ(erased.result.value_bytes, kCount);
  EXPECT_EQ(keys_of(*second, *same), std::set<std::string>());
}

TEST_F(cluster_lists, WaitForAServerThatIsAway) {
  cluster_rig rig;
  for (const char* name : {"a", "b", "c"}) rig.start(name);
  ASSERT_TRUE(rig.settled({"a", "b", "c"}));
  const auto all = rig.open();
  const auto pool = rig.make_pool(*all, "p", 2);
  put_all(*all, pool);
  rig.stop("b");
  EXPECT_EQ(keys_of(*all, pool), names());
  EXPECT_EQ(all->sync(pool).status, 0);
  const auto erased = all->erase_prefix(pool, "key");
  EXPECT_EQ(erased.status, 0) << erased.text;
  EXPECT_EQ(keys_of(*all, pool), std::set<std::string>());
  // Of values with one copy, what is away is missing, and the listing says so.
  const auto lone = rig.make_pool(*all, "lone", 1);
  rig.start("b");
  ASSERT_TRUE(rig.settled({"a", "b", "c"}));
  put_all(*all, lone);
  rig.stop("b");
  const auto hasty = rig.open(500);
  const auto same = hasty->open_pool("lone");
  ASSERT_TRUE(same);
  const auto page = hasty->find(*same, {});
  EXPECT_TRUE(store_client::may_pass(page.status)) << page.status;
  EXPECT_NE(page.text.find("slots"), std::string::npos) << page.text;
}

// Each would cost two seconds and more of every attempt.
TEST_F(cluster_lists, CallsKeepTheirTimeoutWhileServersDoNotAnswer) {
  cluster_rig rig;
  rig.start("a");
  ASSERT_TRUE(rig.settled({"a"}));
  std::vector<silent_listener> silent(6);
  store_client::router_options options;
  options.servers.push_back(rig.server("a").config.listen);
  for (const auto& one : silent) options.servers.push_back(one.endpoint());
  const auto maker = rig.open();
  ASSERT_EQ(maker->put(rig.make_pool(*maker, "p", 1), "k", memory_of(bytes_t(1))).status, 0);
  options.timeout_ms = 20'000;
  auto all = router::open(options);
  ASSERT_TRUE(all) << all.error().message;
  const auto pool = (*all)->open_pool("p");
  ASSERT_TRUE(pool);
  bytes_t room(1);
  ASSERT_EQ((*all)->get(*pool, "k", memory_of(room)).status, 0);
  rig.stop("a");
  const auto seconds_of = [](const std::function<void()>& call) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  EXPECT_LT(seconds_of([&] {
              store_client::get_request get;
              get.timeout_ms = 500;
              EXPECT_NE((*all)->get(*pool, "k", memory_of(room), get).status, 0);
            }),
            8);
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < 40; ++i) keys.push_back("k" + std::to_string(i));
  std::vector<batch_entry> entries(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) entries[i].key = keys[i], entries[i].buffer = memory_of(room);
  EXPECT_LT(seconds_of([&] {
              for (const auto& one : (*all)->run_batch(opcode::batch_get, *pool, entries, 500)) EXPECT_NE(one.status, 0);
            }),
            8);
}

}  // namespace
}  // namespace pl::store_test
