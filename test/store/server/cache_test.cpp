// SPDX-License-Identifier: Apache-2.0
// Pools that are caches, through the whole stack: making them, rights, what clients see of them, and what stays of the rules
// for others.
#include "test/store/server/store_rig.hpp"

namespace pl::store_test {
namespace {

using store_protocol::durability;
using store_protocol::opcode;

class Caches : public testing::Test {
 protected:
  void SetUp() override {
    rig_.start();
    store_ = store_rig::open(rig_.over_unix());
    ASSERT_NE(store_, nullptr);
  }
  result<std::uint32_t> create(const std::string& name, const store_protocol::cache_settings& cache,
                               store_protocol::pool_settings settings = {}) {
    return store_->create_pool(name, settings, cache);
  }
  store_protocol::pool_statistics statistics(const std::string& name) {
    const auto got = store_->run(store_->make_plain(opcode::pool_open, 0, name));
    EXPECT_EQ(got.status, 0) << got.text;
    EXPECT_TRUE(got.fields->cache_is.has_value());
    return got.fields->statistics.value_or(store_protocol::pool_statistics{});
  }
  static constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

  store_rig rig_;
  std::unique_ptr<store_client::client> store_;
};

TEST_F(Caches, EvictByEveryPathAndKeepTheirTerms) {
  store_protocol::cache_settings terms{4 * kMiB, 0, 3'600'000, 1};
  const auto pool = create("cache", terms);
  ASSERT_TRUE(pool) << pool.error().message;
  for (const bool shm : {true, false}) {
    for (const std::size_t size : {std::size_t{500}, std::size_t{70'000}, std::size_t{300'000}}) {
      auto options = rig_.over_unix();
      options.use_shm = shm;
      const auto client = store_rig::open(options);
      const auto mine = client->open_pool("cache");
      ASSERT_TRUE(mine);
      const int count = static_cast<int>(8 * kMiB / size);
      for (int i = 0; i < count; ++i) {
        const auto done = put(*client, *mine, std::to_string(i), random_value(size, static_cast<std::uint64_t>(i)));
        ASSERT_EQ(done.status, 0) << i << ": " << done.text;
        EXPECT_EQ(done.result.reached, durability::volatile_);
      }
      EXPECT_EQ(get(*client, *mine, std::to_string(count - 1), size),
                random_value(size, static_cast<std::uint64_t>(count - 1)));
      EXPECT_LE(statistics("cache").memory_bytes, 4 * kMiB);
    }
  }
  EXPECT_GT(statistics("cache").evicted, 0u);
  EXPECT_EQ(statistics("cache").hits, 6u);
  const auto before = store_->run(store_->make_plain(opcode::pool_open, 0, "cache"));
  EXPECT_EQ(before.fields->cache_is, terms);
  store_.reset();
  rig_.stop();
  rig_.start();
  store_ = store_rig::open(rig_.over_unix());
  const auto after = store_->run(store_->make_plain(opcode::pool_open, 0, "cache"));
  EXPECT_EQ(after.fields->cache_is, terms);
  EXPECT_TRUE(after.fields->settings->is_cache);
  EXPECT_EQ(after.fields->statistics->keys, 0u);
}

TEST_F(Caches, ValuesExpireByPutAndByPool) {
  const auto pool = create("cache", {0, 0, 20, 0});
  ASSERT_TRUE(pool) << pool.error().message;
  store_client::put_request longer;
  longer.ttl_ms = 3'600'000;
  ASSERT_EQ(put(*store_, *pool, "short", random_value(200'000, 1)).status, 0);
  ASSERT_EQ(put(*store_, *pool, "long", random_value(200'000, 2), longer).status, 0);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (store_->run(store_->make_plain(opcode::stat, *pool, "short")).status != ENOENT &&
         std::chrono::steady_clock::now() < deadline) {}
  bytes_t room(200'000);
  EXPECT_EQ(store_->run(store_->make_get(*pool, "short", memory_of(room), {})).status, ENOENT);
  EXPECT_EQ(get(*store_, *pool, "long", 200'000), random_value(200'000, 2));
  const auto other = make_pool(*store_, "other");
  const auto refused = put(*store_, other, "k", random_value(10, 1), longer);
  EXPECT_EQ(refused.status, EINVAL);
  EXPECT_NE(refused.text.find("is not a cache"), std::string::npos) << refused.text;
}

// A full cache refuses no put, and the durable pool has what was acknowledged after a kill as after a stop.
TEST_F(Caches, LeaveTheArenaToOthers) {
  const auto pool = create("cache", {64 * kMiB, 0, 0, 0});
  ASSERT_TRUE(pool) << pool.error().message;
  const auto durable = make_pool(*store_, "durable");
  for (int i = 0; i < 150; ++i) ASSERT_EQ(put(*store_, *pool, std::to_string(i), random_value(500'000, 1)).status, 0) << i;
  for (int i = 0; i < 100; ++i)
    ASSERT_EQ(put(*store_, durable, std::to_string(i), random_value(900'000, static_cast<std::uint64_t>(i))).status, 0) << i;
  for (int i = 0; i < 100; ++i)
    EXPECT_EQ(get(*store_, durable, std::to_string(i), 900'000), random_value(900'000, static_cast<std::uint64_t>(i))) << i;
}

TEST_F(Caches, RefusesContradictions) {
  store_protocol::pool_settings settings;
  settings.level = durability::durable;
  const auto durable = create("a", {}, settings);
  EXPECT_EQ(durable.code(), EINVAL);
  EXPECT_NE(durable.error().message.find("durability is always volatile"), std::string::npos) << durable.error().message;
  settings.level = durability::pool_default;
  settings.copies = 2;
  EXPECT_EQ(create("a", {}, settings).code(), EINVAL);
  EXPECT_EQ(create("a", {0, 0, 0, 9}).code(), EINVAL);
  EXPECT_EQ(create("a", {100, 0, 0, 0}).code(), EINVAL);
  EXPECT_EQ(create("a", {0, 0, ~std::uint64_t{0}, 0}).code(), EINVAL);
  ASSERT_TRUE(create("a", {}));
  EXPECT_EQ(put(*store_, *store_->open_pool("a"), "k", random_value(10, 1), at_level(durability::logged)).status, EINVAL);
}

// A client of an earlier release changes the quota, and knows nothing of caches.
TEST_F(Caches, StayCachesWhenAnOlderClientSetsThem) {
  store_protocol::cache_settings terms{8 * kMiB, 0, 5000, 1};
  ASSERT_TRUE(create("cache", terms));
  const auto set = store_->make_plain(opcode::pool_set, 0, "cache");
  set->fields.settings.emplace().size_bytes = 12345;
  const auto got = store_->run(set);
  ASSERT_EQ(got.status, 0) << got.text;
  EXPECT_EQ(got.fields->cache_is, terms);
  EXPECT_EQ(got.fields->settings->size_bytes, 12345u);
  // An ordinary pool does not become one.
  make_pool(*store_, "pool");
  const auto change = store_->make_plain(opcode::pool_set, 0, "pool");
  change->fields.settings.emplace();
  change->fields.cache = terms;
  EXPECT_EQ(store_->run(change).status, ENOTSUP);
}

// Only those that may open a pool see its name and its counts.
TEST_F(Caches, TellTheirCountsToThoseWhoMayOpenThem) {
  store_protocol::pool_settings mine;
  mine.access = "uid:4294967294=rw";
  ASSERT_TRUE(create("secret", {}, mine));
  const auto pool = create("open", {});
  ASSERT_TRUE(pool);
  ASSERT_EQ(put(*store_, *pool, "k", random_value(100, 1)).status, 0);
  EXPECT_EQ(put(*store_, *store_->open_pool("secret"), "k", random_value(100, 1)).status, 0);  // an administrator
  EXPECT_EQ(get(*store_, *pool, "k", 100), random_value(100, 1));
  const std::string all = store_->run(store_->make_plain(opcode::stats, 0, {})).body;
  EXPECT_NE(all.find("peerlane_store_pool_hits_total{pool=\"open\"} 1"), std::string::npos) << all;
  EXPECT_NE(all.find("peerlane_store_pool_keys{pool=\"secret\"} 1"), std::string::npos) << all;
  store_.reset();
  rig_.stop();
  rig_.config.admins = {"uid:4294967294"};  // nobody
  rig_.start();
  store_ = store_rig::open(rig_.over_unix());
  const std::string few = store_->run(store_->make_plain(opcode::stats, 0, {})).body;
  EXPECT_EQ(few.find("secret"), std::string::npos) << few;
  EXPECT_EQ(store_->open_pool("secret").code(), EACCES);
}

}  // namespace
}  // namespace pl::store_test
