// SPDX-License-Identifier: Apache-2.0
// Whose values a store holds: quotas on every way in, counts that agree with the values whatever happens to them, and
// records of earlier releases.
#include "store/engine/owners.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <functional>
#include <future>
#include <map>
#include <random>

#include "arch/crc32c.hpp"
#include "store/engine/disk.hpp"
#include "store/engine/index.hpp"
#include "store/engine/record.hpp"
#include "store/engine/store_folder.hpp"
#include "store/engine/value_stream.hpp"
#include "test/store/engine/store_fixture.hpp"

namespace pl::store {
namespace {

using held = std::pair<std::uint64_t, std::uint64_t>;  // keys, bytes

class Owners : public StoreTest {
 protected:
  engine_options options() override {
    auto made = StoreTest::options();
    made.cache_of = [](const pool_info& pool) { return pool.name == "cache" ? std::optional(cache_terms{}) : std::nullopt; };
    made.needs_private_arena = [this](const pool_info&) { return is_apart_.load(); };
    return made;
  }
  void SetUp() override {
    StoreTest::SetUp();
    name_owners();
  }
  void name_owners() { ann_ = store_->need_owner("ann"), bob_ = store_->need_owner("bob"); }
  held holding(const std::string& name) const {
    for (const owner_info& one : store_->list_owners())
      if (one.name == name) return {one.keys, one.bytes};
    return {};
  }
  result<put_result> put(owner_id owner, std::string_view key, std::size_t bytes,
                         durability level = durability::pool_default, pool_id pool = 0) {
    return store_->put(
        pool != 0 ? pool : pool_, key, pattern_bytes(bytes, 1),
        {.level = level, .deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10), .owner = owner});
  }
  void restart() {
    reopen();
    name_owners();
  }
  // Into the catalogue of the stopped store; nothing: erases it.
  void write_record(const std::string& key, const std::optional<std::string>& record) {
    const auto files = make_system_disk();
    const std::string folder = options().directory;
    auto opened = index::open({folder + "/index", 1 << 20, false, files->index_env(), folder + "/commit.mark", files.get(),
                               true, ~std::uint64_t{0}});
    ASSERT_TRUE(opened) << opened.error().message;
    rocksdb::WriteBatch batch;
    if (record) (*opened)->put(batch, family::catalogue, key, *record);
    else (*opened)->erase(batch, family::catalogue, key);
    ASSERT_TRUE((*opened)->write(batch, true));
    ASSERT_TRUE((*opened)->prepare_stop(~std::uint64_t{0}));
  }
  owner_id ann_ = 0, bob_ = 0;
  std::atomic<bool> is_apart_{false};
};

// What other stores say beside what is here: also of owners that come later, and for a batch.
TEST_F(Owners, WhatIsHeldElsewhereCountsForTheQuotaOfTheCluster) {
  store_->set_quotas({{"ann", 0, 0, 1000, 5}, {"carl", 0, 0, 0, 2}});
  ASSERT_TRUE(put(ann_, "a", 300));
  store_->set_held_elsewhere({{"ann", 2, 600}, {"carl", 2, 10}, {"nobody here", 9, 9}});
  const auto refused = put(ann_, "b", 101);
  ASSERT_EQ(refused.code(), EDQUOT);
  for (const char* part : {"ann", "900", "1000", "1001", "cluster"})
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
  ASSERT_TRUE(put(ann_, "b", 100));
  EXPECT_EQ(put(ann_, "a", 301).code(), EDQUOT);
  EXPECT_TRUE(put(ann_, "a", 200)) << "less than before";
  ASSERT_TRUE(put(ann_, "c", 1, durability::volatile_));
  EXPECT_EQ(put(ann_, "d", 1, durability::volatile_).code(), EDQUOT) << "its sixth key";
  EXPECT_EQ(put(store_->need_owner("carl"), "e", 1).code(), EDQUOT);
  EXPECT_TRUE(put(bob_, "f", 5000));
  const auto list = store_->list_owners();
  EXPECT_EQ(list[0].elsewhere_keys, 2u);
  EXPECT_EQ(list[0].elsewhere_bytes, 600u);
  EXPECT_EQ(list[0].quota.cluster_bytes, 1000u);
  store_->set_held_elsewhere({});
  EXPECT_TRUE(put(ann_, "d", 1));
  EXPECT_TRUE(put(ann_, "a", 600));
  EXPECT_EQ(put(ann_, "a", 900).code(), EDQUOT) << "the limit holds for one store alone, too";
}

TEST_F(Owners, AQuotaNamesOwnerLimitAndWhatItHolds) {
  store_->set_quotas({{"ann", 1000, 0}, {"bob", 0, 2}});
  ASSERT_TRUE(put(ann_, "a", 700));
  const auto refused = put(ann_, "b", 301);
  ASSERT_EQ(refused.code(), EDQUOT);
  for (const char* part : {"ann", "700", "1000", "1001"})
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
  EXPECT_EQ(read("b"), "errno " + std::to_string(ENOENT));
  EXPECT_TRUE(put(ann_, "b", 300));
  EXPECT_EQ(put(ann_, "a", 701).code(), EDQUOT);
  EXPECT_TRUE(put(ann_, "a", 100));  // less is always allowed
  EXPECT_EQ(holding("ann"), held(2, 400));

  ASSERT_TRUE(put(bob_, "c", 5000));
  ASSERT_TRUE(put(bob_, "d", 5000));
  const auto third = put(bob_, "e", 1);
  ASSERT_EQ(third.code(), EDQUOT);
  EXPECT_NE(third.error().message.find("2 keys, of a quota of 2"), std::string::npos) << third.error().message;
  EXPECT_TRUE(put(bob_, "d", 9000));
  EXPECT_TRUE(put(0, "e", 100'000));  // nobody's quota
  // Below what is held already: nothing more, but less.
  store_->set_quotas({{"bob", 1000, 0}});
  EXPECT_EQ(put(bob_, "d", 9001).code(), EDQUOT);
  EXPECT_TRUE(put(bob_, "d", 8000));
  EXPECT_TRUE(put(ann_, "f", 5000));  // hers is gone
  for (const owner_info& one : store_->list_owners()) EXPECT_EQ(one.refused, one.name == "ann" ? 2u : 2u) << one.name;
}

TEST_F(Owners, TheDefaultIsForThoseWithoutAQuotaOfTheirOwn) {
  store_->set_quotas({{"*", 100, 0}, {"ann", 200, 0}, {"free", 0, 0}});
  EXPECT_TRUE(put(ann_, "a", 200));
  EXPECT_EQ(put(bob_, "b", 101).code(), EDQUOT);
  EXPECT_EQ(put(store_->need_owner("came later"), "b", 101).code(), EDQUOT);
  EXPECT_TRUE(put(store_->need_owner("free"), "b", 10'000));
}

// Every way in which a value comes. Each puts `bytes` under the key for the owner; at least one put of it must be refused.
struct way {
  const char* name;
  std::function<int(engine& store, pool_id pool, std::string_view key, std::size_t bytes, owner_id owner)> put;
};

int put_by_grant(engine& store, pool_id pool, std::string_view key, std::size_t bytes, owner_id owner, durability level,
                 bool from_current) {
  const session_id session = store.open_session();
  begin_options begin;
  begin.from_current = from_current;
  const auto granted = store.begin_put(session, pool, key, bytes, begin);
  int code = granted.code();
  if (granted) {
    commit_options commit;
    commit.put.owner = owner;
    commit.put.level = level;
    code = store.commit(session, granted->id, commit).code();
  }
  store.close_session(session);
  return code;
}

int put_by_batch(engine& store, pool_id pool, std::string_view key, std::size_t bytes, owner_id owner, bool atomic) {
  const auto value = pattern_bytes(bytes, 1);
  const batch_operation one{.key = key, .value = value};
  batch_options options;
  options.atomic = atomic;
  options.owner = owner;
  const auto done = store.batch(pool, {&one, 1}, options);
  return done ? done->items.front().error : done.code();
}

int put_by_writer(engine& store, pool_id pool, std::string_view key, std::size_t bytes, owner_id owner) {
  auto writer = store.open_writer(pool, key, bytes);
  if (!writer) return writer.code();
  std::uint32_t crc = 0;
  for (std::size_t left = bytes; left > 0;) {
    const auto room = (*writer)->room();
    if (room.empty()) {
      if (!(*writer)->failed()) return (*writer)->failed().code();
      continue;
    }
    const auto part = std::min(left, room.size());
    std::memset(room.data(), 'x', part);
    crc = arch::crc32c(room.data(), part, crc);
    (*writer)->filled(part);
    left -= part;
  }
  std::promise<int> answer;
  put_options options;
  options.owner = owner;
  (*writer)->commit_async(options, crc, [&](const result<put_result>& done) { answer.set_value(done.code()); });
  return answer.get_future().get();
}

const way kWays[] = {
    {"durable",
     [](engine& store, pool_id pool, std::string_view key, std::size_t bytes, owner_id owner) {
       return store.put(pool, key, pattern_bytes(bytes, 1), {.level = durability::durable, .owner = owner}).code();
     }},
    {"logged",
     [](engine& store, pool_id pool, std::string_view key, std::size_t bytes, owner_id owner) {
       return store.put(pool, key, pattern_bytes(bytes, 1), {.level = durability::logged, .owner = owner}).code();
     }},
    {"volatile",
     [](engine& store, pool_id pool, std::string_view key, std::size_t bytes, owner_id owner) {
       return store.put(pool, key, pattern_bytes(bytes, 1), {.level = durability::volatile_, .owner = owner}).code();
     }},
    {"grant", [](engine& store, pool_id pool, std::string_view key, std::size_t bytes,
                 owner_id owner) { return put_by_grant(store, pool, key, bytes, owner, durability::durable, false); }},
    {"volatile grant",
     [](engine& store, pool_id pool, std::string_view key, std::size_t bytes, owner_id owner) {
       return put_by_grant(store, pool, key, bytes, owner, durability::volatile_, false);
     }},
    {"part of a value",
     [](engine& store, pool_id pool, std::string_view key, std::size_t bytes, owner_id owner) {
       return put_by_grant(store, pool, key, bytes, owner, durability::durable, true);
     }},
    {"batch", [](engine& store, pool_id pool, std::string_view key, std::size_t bytes,
                 owner_id owner) { return put_by_batch(store, pool, key, bytes, owner, false); }},
    {"atomic batch", [](engine& store, pool_id pool, std::string_view key, std::size_t bytes,
                        owner_id owner) { return put_by_batch(store, pool, key, bytes, owner, true); }},
    {"writer", [](engine& store, pool_id pool, std::string_view key, std::size_t bytes,
                  owner_id owner) { return put_by_writer(store, pool, key, bytes, owner); }},
};

TEST_F(Owners, EveryWayCountsAndIsRefused) {
  for (const std::size_t bytes : {kSmall, kLarge}) {
    store_->set_quotas({{"ann", 2 * bytes, 0}});
    for (const way& one : kWays) {
      SCOPED_TRACE(std::string(one.name) + " of " + std::to_string(bytes));
      ASSERT_EQ(one.put(*store_, pool_, "1", bytes, ann_), 0);
      ASSERT_EQ(one.put(*store_, pool_, "2", bytes, ann_), 0);
      EXPECT_EQ(holding("ann"), held(2, 2 * bytes));
      EXPECT_EQ(one.put(*store_, pool_, "3", bytes, ann_), EDQUOT);
      EXPECT_EQ(store_->stat(pool_, "3").code(), ENOENT);
      EXPECT_EQ(one.put(*store_, pool_, "2", bytes, ann_), 0);  // as much as before
      // Another one takes the key over, by this way and by each other.
      for (const way& next : kWays) {
        ASSERT_EQ(next.put(*store_, pool_, "1", bytes - 1, bob_), 0) << next.name;
        EXPECT_EQ(holding("ann"), held(1, bytes)) << next.name;
        EXPECT_EQ(holding("bob"), held(1, bytes - 1)) << next.name;
        ASSERT_EQ(one.put(*store_, pool_, "1", bytes, ann_), 0) << next.name;
        EXPECT_EQ(holding("bob"), held(0, 0)) << next.name;
      }
      for (const char* key : {"1", "2"}) ASSERT_TRUE(store_->erase(pool_, key));
      EXPECT_EQ(holding("ann"), held(0, 0));
    }
  }
  expect_sound();
}

TEST_F(Owners, AreRefusedBeforeTheirBytesCome) {
  store_->set_quotas({{"ann", kLarge, 0}});
  ASSERT_TRUE(put(ann_, "a", kLarge - 10));
  const session_id session = store_->open_session();
  begin_options by_ann;
  by_ann.owner = ann_;
  EXPECT_EQ(store_->begin_put(session, pool_, "b", 11, by_ann).code(), EDQUOT);
  EXPECT_EQ(store_->open_writer(pool_, "b", kLarge, ann_).code(), EDQUOT);
  EXPECT_TRUE(store_->begin_put(session, pool_, "b", 10, by_ann));
  EXPECT_TRUE(store_->begin_put(session, pool_, "a", kLarge, by_ann));  // in place of her own
  EXPECT_TRUE(store_->open_writer(pool_, "a", kLarge, ann_));
  EXPECT_EQ(store_->begin_put(session, pool_, "a", kLarge + 1, by_ann).code(), EDQUOT);
  restart();  // the value is found through the index
  store_->set_quotas({{"ann", kLarge, 0}});
  by_ann.owner = ann_;
  EXPECT_TRUE(store_->begin_put(store_->open_session(), pool_, "a", kLarge, by_ann));
  EXPECT_EQ(store_->begin_put(store_->open_session(), pool_, "b", 11, by_ann).code(), EDQUOT);
}

// Its answer was lost, somebody else has replaced the value since, and the quota is full: the answer is the first one.
TEST_F(Owners, ARepeatedPutIsAnsweredAsTheFirstTime) {
  store_->set_quotas({{"ann", kLarge, 0}});
  put_options first;
  first.owner = ann_;
  first.request = {7, 1};
  const bytes value = pattern_bytes(kLarge, 1);
  const auto done = store_->put(pool_, "a", value, first);
  ASSERT_TRUE(done);
  ASSERT_TRUE(put(bob_, "a", 10));
  ASSERT_TRUE(put(ann_, "b", kLarge));
  const auto again = store_->put(pool_, "a", value, first);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->version, done->version);
  begin_options by_ann;
  by_ann.owner = ann_;
  by_ann.request = first.request;
  EXPECT_TRUE(store_->begin_put(store_->open_session(), pool_, "a", kLarge, by_ann));
  EXPECT_TRUE(store_->open_writer(pool_, "a", kLarge, ann_, first.request));
  by_ann.request.sequence = 2;  // another one
  EXPECT_EQ(store_->begin_put(store_->open_session(), pool_, "a", kLarge, by_ann).code(), EDQUOT);
  EXPECT_EQ(holding("bob"), held(1, 10));
}

TEST_F(Owners, ALimitInTheMiddleOfABatch) {
  store_->set_quotas({{"ann", 0, 3}});
  std::vector<batch_operation> five;
  const std::string keys[] = {"1", "2", "3", "4", "5"};
  for (const std::string& key : keys) five.push_back({.key = key, .value = as_bytes("value")});
  batch_options options;
  options.owner = ann_;
  options.atomic = true;
  const auto whole = store_->batch(pool_, five, options);
  ASSERT_TRUE(whole);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(whole->items[i].error, i == 3 ? EDQUOT : ECANCELED) << i;
  EXPECT_EQ(holding("ann"), held(0, 0));
  EXPECT_EQ(read("1"), "errno " + std::to_string(ENOENT));
  for (const durability level : {durability::durable, durability::volatile_}) {
    options.atomic = false;
    options.level = level;
    const auto parts = store_->batch(pool_, five, options);
    ASSERT_TRUE(parts);
    for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(parts->items[i].error, i < 3 ? 0 : EDQUOT) << i;
    EXPECT_EQ(holding("ann"), held(3, 15));
    EXPECT_EQ(read("3"), "value");
    EXPECT_EQ(read("4"), "errno " + std::to_string(ENOENT));
  }
  // An atomic batch that puts over another's values and fails gives both back what they had.
  ASSERT_TRUE(put(bob_, "x", 50));
  const batch_operation over[] = {{.key = "x", .value = as_bytes("v"), .precondition = condition::if_absent}};
  options.atomic = true;
  options.level = durability::durable;
  std::vector<batch_operation> taking{{.key = "1", .value = as_bytes("longer value")}, over[0]};
  const auto failed = store_->batch(pool_, taking, options);
  ASSERT_TRUE(failed);
  EXPECT_EQ(failed->items[1].error, EEXIST);
  EXPECT_EQ(holding("ann"), held(3, 15));
  EXPECT_EQ(holding("bob"), held(1, 50));
  expect_sound();
}

TEST_F(Owners, APoolGivesAllBackAtOnce) {
  const pool_id other = make_pool("other", durability::durable);
  for (const auto level : {durability::durable, durability::logged, durability::volatile_})
    for (const auto bytes : {kSmall, kLarge}) {
      const std::string key = std::to_string(static_cast<int>(level)) + "/" + std::to_string(bytes);
      ASSERT_TRUE(put(ann_, key, bytes, level, other));
      ASSERT_TRUE(put(bob_, key + "b", bytes, level, other));
    }
  ASSERT_TRUE(put(ann_, "stays", 10));
  EXPECT_EQ(holding("ann"), held(7, 3 * (kSmall + kLarge) + 10));
  ASSERT_TRUE(store_->delete_pool(other));
  EXPECT_EQ(holding("ann"), held(1, 10));
  EXPECT_EQ(holding("bob"), held(0, 0));
  expect_sound();
  restart();
  EXPECT_EQ(holding("ann"), held(1, 10));
  EXPECT_EQ(holding("bob"), held(0, 0));
}

// To the disk because memory is full, back to be read, and to other memory because the pool's values shall lie apart.
TEST_F(Owners, ValuesThatMoveKeepTheirs) {
  constexpr std::size_t kBytes = std::size_t{1} << 20, kCount = 24;
  const pool_id quick = make_pool("quick", durability::volatile_);
  const auto expect_moved = [&](pool_id pool, bool reads) {
    for (std::size_t i = 0; i < kCount; ++i) {
      const std::string key = std::to_string(i);
      ASSERT_TRUE(!reads || read(*store_, pool, key).size() == kBytes);
      ASSERT_TRUE(i % 2 == 0 ? put(bob_, key, 5000, durability::pool_default, pool).ok() : store_->erase(pool, key).ok());
    }
    EXPECT_EQ(holding("ann"), held(0, 0));
    EXPECT_EQ(holding("bob"), held(kCount / 2, kCount / 2 * 5000));
    for (std::size_t i = 0; i < kCount; i += 2) ASSERT_TRUE(store_->erase(pool, std::to_string(i)));
  };
  const auto fill = [&](pool_id pool) {
    for (std::size_t i = 0; i < kCount; ++i)
      ASSERT_TRUE(put(ann_, std::to_string(i), kBytes, durability::pool_default, pool));
    EXPECT_EQ(holding("ann"), held(kCount, kCount * kBytes));
  };
  for (const bool reads : {false, true}) {
    SCOPED_TRACE(reads);
    ASSERT_NO_FATAL_FAILURE(fill(quick));
    EXPECT_GT(store_->stats().spilled_bytes, 4 * kBytes);
    ASSERT_NO_FATAL_FAILURE(expect_moved(quick, reads));
    ASSERT_NO_FATAL_FAILURE(fill(pool_));
    ASSERT_NO_FATAL_FAILURE(expect_moved(pool_, reads));
  }
  ASSERT_TRUE(put(ann_, "k", kLarge, durability::pool_default, quick));
  is_apart_ = true;
  ASSERT_TRUE(store_->configure_pool(quick, store_->pool(quick)->options));
  ASSERT_TRUE(put(bob_, "k", 1, durability::pool_default, quick));
  EXPECT_EQ(holding("ann"), held(0, 0));
}

TEST_F(Owners, CachesCountForNobody) {
  const pool_id cache = make_pool("cache", durability::volatile_);
  store_->set_quotas({{"ann", 100, 0}});
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(put(ann_, std::to_string(i), kLarge, durability::pool_default, cache));
  EXPECT_EQ(holding("ann"), held(0, 0));
  EXPECT_EQ(put(ann_, "k", 101).code(), EDQUOT);
}

TEST_F(Owners, CopiesOfOtherStoresAreTakenAnyway) {
  store_->set_quotas({{"ann", 10, 0}});
  put_options copy;
  copy.owner = ann_;
  copy.copy = {store_->put(pool_, "k", as_bytes("x"))->version + 100, 0};
  for (const auto bytes : {kSmall, kLarge}) {
    ++copy.copy.version;
    ASSERT_TRUE(store_->put(pool_, "k", pattern_bytes(bytes, 1), copy));
    EXPECT_EQ(holding("ann"), held(1, bytes));
  }
  copy.level = durability::volatile_;
  ++copy.copy.version;
  ASSERT_TRUE(store_->put(pool_, "v", pattern_bytes(kSmall, 1), copy));
  EXPECT_EQ(holding("ann"), held(2, kLarge + kSmall));
}

TEST_F(Owners, NamesThatAreManyOrLongAreCountedTogether) {
  const owner_id together = store_->need_owner(std::string(owners::kMaxNameBytes + 1, 'x'));
  EXPECT_EQ(store_->owner_name(together), "*");
  EXPECT_EQ(store_->need_owner(""), 0u);
  owners table;
  for (std::size_t i = 0; i < owners::kMaxOwners; ++i) ASSERT_EQ(table.need(std::to_string(i)), i + 1);
  const owner_id rest = table.need("one more");
  EXPECT_EQ(table.find(rest)->name, "*");
  EXPECT_EQ(table.need("and another"), rest);
  EXPECT_EQ(table.need("17"), 18u);
}

// What each holds, by what was acknowledged; over restarts, drops of pools, more values than memory holds.
TEST_F(Owners, CountsAreThoseOfTheValuesWhateverHappens) {
  struct stored {
    std::string owner;
    std::uint64_t bytes = 0;
    bool is_volatile = false;
  };
  std::map<std::string, std::map<std::string, stored>> model;  // pool, key
  const unsigned seed = static_cast<unsigned>(::testing::UnitTest::GetInstance()->random_seed());
  std::mt19937 random(seed);
  SCOPED_TRACE("seed " + std::to_string(seed));
  const std::string names[] = {"", "ann", "bob", "eve"};
  const auto expect_counts = [&] {
    std::map<std::string, held> expected;
    for (const auto& [pool, keys] : model)
      for (const auto& [key, one] : keys) ++expected[one.owner].first, expected[one.owner].second += one.bytes;
    for (std::size_t i = 1; i < 4; ++i) ASSERT_EQ(holding(names[i]), expected[names[i]]) << names[i];
  };
  for (int life = 0; life < 6; ++life) {
    for (int step = 0; step < 400; ++step) {
      const std::string pool_name = "p" + std::to_string(random() % 3);
      auto pool = store_->find_pool(pool_name);
      if (!pool) pool = store_->create_pool(pool_name, {});
      ASSERT_TRUE(pool);
      auto& keys = model[pool_name];
      const std::string key = std::to_string(random() % 60);
      const std::string& owner = names[random() % 4];
      const auto kind = random() % 100;
      if (kind == 0) {
        ASSERT_TRUE(store_->delete_pool(pool->id));
        model.erase(pool_name);
      } else if (kind < 20) {
        ASSERT_EQ(store_->erase(pool->id, key).ok(), keys.contains(key));
        keys.erase(key);
      } else if (kind < 40) {
        ASSERT_EQ(read(*store_, pool->id, key).size() == keys[key].bytes, keys[key].bytes != 0);
        if (keys[key].bytes == 0) keys.erase(key);
      } else {
        const std::size_t bytes = 1 + random() % (kind < 70 ? 3000 : 300'000);
        const bool is_volatile = random() % 4 == 0;
        const way& one = kWays[is_volatile ? 2 : std::array{0, 1, 3, 6, 7, 8}[random() % 6]];
        ASSERT_EQ(one.put(*store_, pool->id, key, bytes, store_->need_owner(owner)), 0) << one.name;
        keys[key] = {owner, bytes, is_volatile};
      }
      if (step % 50 == 0) { ASSERT_NO_FATAL_FAILURE(expect_counts()); }
    }
    ASSERT_NO_FATAL_FAILURE(expect_counts());
    expect_sound();
    reopen();
    for (auto& [pool, keys] : model) std::erase_if(keys, [](const auto& one) { return one.second.is_volatile; });
    ASSERT_NO_FATAL_FAILURE(expect_counts());
  }
}

// ---- Records and folders -----------------------------------------------------------------------------------------------

std::uint32_t format_of(const std::string& folder) {
  index::options settings;
  settings.folder = folder + "/index";
  settings.cache_bytes = 1 << 20;
  settings.read_only = true;
  const auto opened = index::open(settings);
  EXPECT_TRUE(opened);
  const auto stored = (*opened)->get(family::catalogue, "f");
  return decode_format(**stored)->number;
}

TEST_F(Owners, AStoreWithoutOwnersKeepsTheEarlierFormat) {
  ASSERT_TRUE(put(0, "a", kSmall));
  ASSERT_TRUE(put(0, "b", kLarge));
  const std::string folder = options().directory;
  store_.reset();
  EXPECT_EQ(format_of(folder), 1u);
  restart();
  ASSERT_TRUE(put(ann_, "v", kSmall, durability::volatile_));  // leaves no record
  store_.reset();
  EXPECT_EQ(format_of(folder), 1u);
  restart();
  ASSERT_TRUE(put(bob_, "c", kSmall));
  store_.reset();
  EXPECT_EQ(format_of(folder), kFormatWithOwners);
  restart();
  EXPECT_EQ(holding("bob"), held(1, kSmall));
  EXPECT_EQ(holding("ann"), held(0, 0));
  // Values of nobody that somebody takes over.
  ASSERT_TRUE(put(ann_, "a", kSmall + 1));
  ASSERT_TRUE(put(ann_, "b", kLarge + 1));
  EXPECT_EQ(holding("ann"), held(2, kSmall + kLarge + 2));
  expect_sound();
}

TEST(OwnerRecords, OfNobodyAreThoseOfEarlierReleases) {
  // As 0.2.0 wrote it: kind, level, flags, version, length, checksum, time, value.
  const std::string earlier("\x01\x03\x07\0\0\0\x09\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x0a\0\0\0\x05\0\0\0\0\0\0\0hi", 36);
  const auto read = decode_value(earlier);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->owner, 0u);
  EXPECT_EQ(read->small_value, "hi");
  EXPECT_EQ(encode(*read), earlier);
  value_record owned = *read;
  owned.owner = 77;
  const std::string now = encode(owned);
  EXPECT_EQ(now.size(), earlier.size() + 4);
  ASSERT_TRUE(decode_value(now));
  EXPECT_EQ(decode_value(now)->owner, 77u);
  std::string nobody = now;
  nobody.replace(34, 4, 4, '\0');
  EXPECT_FALSE(decode_value(nobody)) << "one value, two records";
}

TEST_F(Owners, BackupRestoreAndRepairKeepThem) {
  store_->need_owner("puts nothing");
  ASSERT_TRUE(put(bob_, "a", kSmall));
  ASSERT_TRUE(put(ann_, "b", kLarge));
  ASSERT_TRUE(put(ann_, "c", std::size_t{6} << 20));
  store_.reset();
  const std::string data = options().directory;
  ASSERT_TRUE(backup_folder(data, folder_.path() + "/backup"));
  ASSERT_TRUE(restore_folder(folder_.path() + "/backup", folder_.path() + "/restored"));
  ASSERT_TRUE(repair_folder(data, folder_.path() + "/repaired"));
  // The way back to an earlier release.
  ASSERT_TRUE(repair_folder(data, folder_.path() + "/nobody's", nullptr, false));
  EXPECT_EQ(format_of(folder_.path() + "/nobody's"), 1u);
  for (const char* name : {"/data", "/restored", "/repaired"}) {
    SCOPED_TRACE(name);
    auto settings = options();
    settings.directory = folder_.path() + name;
    auto opened = engine::open(settings);
    ASSERT_TRUE(opened) << opened.error().message;
    store_ = *std::move(opened);
    EXPECT_EQ(holding("bob"), held(1, kSmall));
    EXPECT_EQ(holding("ann"), held(2, kLarge + (std::size_t{6} << 20)));
    expect_sound();
  }
}

TEST_F(Owners, ALostNameIsReportedAndItsValuesAreKept) {
  ASSERT_TRUE(put(ann_, "a", kSmall));
  ASSERT_TRUE(put(ann_, "b", kLarge));
  store_.reset();
  write_record(owner_key(ann_), std::nullopt);
  const auto opened = engine::open(options());
  ASSERT_EQ(opened.code(), EUCLEAN);
  EXPECT_NE(opened.error().message.find("owner 1, which has no record"), std::string::npos) << opened.error().message;
  const auto repaired = repair_folder(options().directory, folder_.path() + "/repaired");
  ASSERT_TRUE(repaired);
  EXPECT_EQ(repaired->saved_keys, 2u);
  ASSERT_EQ(repaired->lost.size(), 1u);
  EXPECT_NE(repaired->lost[0].find("owner 1"), std::string::npos) << repaired->lost[0];
  EXPECT_TRUE(check_folder(folder_.path() + "/repaired")->is_good());
}

TEST_F(Owners, CheckComparesCountsWithValues) {
  ASSERT_TRUE(put(ann_, "a", kSmall));
  ASSERT_TRUE(put(bob_, "b", kLarge));
  store_.reset();
  const std::string folder = options().directory;
  const auto problems = [&] {
    const auto report = check_folder(folder);
    EXPECT_TRUE(report);
    return report ? report->problems : std::vector<std::string>{};
  };
  EXPECT_TRUE(problems().empty());
  write_record(owner_counts_key(pool_, ann_), encode(pool_counts{1, kSmall - 1}));
  ASSERT_EQ(problems().size(), 1u);
  EXPECT_NE(problems().front().find("of 'ann' are 1 with 1000 bytes, its counts say 1 with 999"), std::string::npos)
      << problems().front();
  write_record(owner_counts_key(pool_, ann_), encode(pool_counts{1, kSmall}));
  write_record(owner_counts_key(pool_ + 5, bob_), encode(pool_counts{1, 1}));
  EXPECT_EQ(problems().size(), 1u);
}

}  // namespace
}  // namespace pl::store
