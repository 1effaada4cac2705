// SPDX-License-Identifier: Apache-2.0
// Levels of durability at the engine's boundary: each call takes those that the engine gives and refuses all others, and
// what an earlier release stored under a level that no longer exists is read.
#include "store/protocol/durability.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <future>

#include "store/engine/index.hpp"
#include "store/engine/record.hpp"
#include "test/store/engine/store_fixture.hpp"

namespace pl::store {
namespace {

class Durability : public StoreTest {
 protected:
  static constexpr durability kRefused[] = {durability::replicated, static_cast<durability>(5),
                                            static_cast<durability>(255)};
};

TEST_F(Durability, ALevelThatTheEngineDoesNotGiveIsRefusedByEveryCall) {
  ASSERT_EQ(put("kept", "value"), 0);
  const session_id session = store_->open_session();
  for (const durability level : kRefused) {
    const int code = level == durability::replicated ? ENOTSUP : EINVAL;
    const auto answer = store_->put(pool_, "key", as_bytes("other"), {.level = level});
    EXPECT_EQ(answer.code(), code);
    EXPECT_NE(answer.error().message.find("volatile, logged or durable"), std::string::npos) << answer.error().message;
    EXPECT_EQ(store_->put(pool_, "key", pattern_bytes(20 << 20, 1), {.level = level}).code(), code);  // longer than memory
    std::promise<int> asynchronous;
    store_->put_async(pool_, "key", as_bytes("other"), {.level = level},
                      [&asynchronous](result<put_result> answered) { asynchronous.set_value(answered.code()); });
    EXPECT_EQ(asynchronous.get_future().get(), code);
    EXPECT_EQ(store_->erase(pool_, "kept", {.level = level}).code(), code);
    const batch_operation one{batch_operation::kind::put, "key", as_bytes("other")};
    EXPECT_EQ(store_->batch(pool_, {&one, 1}, {.level = level}).code(), code);
    const auto given = store_->begin_put(session, pool_, "key", kLarge);
    ASSERT_TRUE(given);
    EXPECT_EQ(store_->arrived(session, given->id, 10, level).code(), code);
    commit_options commit;
    commit.put.level = level;
    EXPECT_EQ(store_->commit(session, given->id, commit).code(), code);
    pool_options pool;
    pool.level = level;
    EXPECT_EQ(store_->create_pool("another", pool).code(), code);
    EXPECT_EQ(store_->configure_pool(pool_, pool).code(), code);
  }
  store_->close_session(session);
  EXPECT_EQ(read("key"), "errno 2");
  EXPECT_EQ(store_->stats().arena_used_bytes, 4096u);  // of "kept": nothing of the refused ones stays
  reopen();
  EXPECT_EQ(read("kept"), "value");
  expect_sound();
}

TEST_F(Durability, RecordsOfALevelThatAnEarlierReleaseTookAreRead) {
  store_.reset();
  {
    auto records = index::open({folder_.path() + "/data/index", 1 << 20});
    ASSERT_TRUE(records) << records.error().message;
    rocksdb::WriteBatch batch;
    value_record old;
    old.version = 7, old.small_value = "value", old.length_bytes = 5, old.crc = 0x1234, old.level = durability::durable;
    std::string raw = encode(old);
    constexpr char kReplicated = 4;
    raw[1] = kReplicated;
    (*records)->put(batch, family::values, full_key(pool_, "old"), raw);
    pool_info pool{9, "old pool", {}, 0, 0, 5};
    raw = encode(pool);
    raw[1 + 4 + 4 + pool.name.size()] = kReplicated;
    (*records)->put(batch, family::catalogue, std::string("p\0\0\0\x09", 5), raw);
    ASSERT_TRUE((*records)->write(batch, true));
  }
  open();
  const auto info = store_->stat(pool_, "old");
  ASSERT_TRUE(info) << info.error().message;
  EXPECT_EQ(info->level, durability::logged);  // what it was given
  const auto pool = store_->find_pool("old pool");
  ASSERT_TRUE(pool) << pool.error().message;
  EXPECT_EQ(pool->options.level, durability::durable);  // the most that the engine gives
  EXPECT_TRUE(store_->put(pool->id, "key", as_bytes("value")));
  reopen();
  EXPECT_EQ(read(*store_, 9, "key"), "value");
}

TEST(DurabilityNames, EveryLevelHasOneNumberAndOneName) {
  for (unsigned number = 0; number < 256; ++number) {
    const auto level = durability_from(number);
    EXPECT_EQ(level.has_value(), number <= 4) << number;
    if (!level) continue;
    EXPECT_EQ(static_cast<unsigned>(*level), number);
    EXPECT_EQ(durability_named(name_of(*level)).has_value(), number != 0) << number;
  }
  EXPECT_EQ(durability_named("durable"), durability::durable);
  EXPECT_FALSE(durability_named("default"));
  EXPECT_FALSE(durability_named(""));
}

}  // namespace
}  // namespace pl::store
