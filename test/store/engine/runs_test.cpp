// SPDX-License-Identifier: Apache-2.0
// Grants and pins of many values by one call: as if each had been asked for alone.
#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "test/store/engine/store_fixture.hpp"

namespace pl::store {
namespace {

class Runs : public StoreTest {
 protected:
  struct item {
    std::string key;
    bytes content;
    run_commit commit{};
  };

  granted_run begin(pool_id pool, const std::vector<item>& items, const begin_options& options = {}) {
    std::vector<run_put> puts;
    for (const item& one : items) puts.push_back({one.key, one.content.size()});
    auto given = store_->begin_run(session_, pool, puts, options);
    EXPECT_TRUE(given) << given.error().message;
    return given ? *std::move(given) : granted_run{};
  }
  void fill(const granted_run& given, const std::vector<item>& items) const {
    for (std::size_t i = 0; i < items.size(); ++i) {
      std::size_t done = 0;
      for (const segment& piece : given.values[i].segments) {
        std::memcpy(store_->arena().base + piece.offset_bytes, items[i].content.data() + done, piece.size_bytes);
        done += piece.size_bytes;
      }
      if (given.values[i].is_granted()) { EXPECT_EQ(done, items[i].content.size()) << items[i].key; }
    }
  }
  std::vector<committed_value> commit(const granted_run& given, const std::vector<item>& items,
                                      const run_options& options = {}) {
    std::vector<run_commit> list;
    for (std::size_t i = 0; i < items.size(); ++i) {
      list.push_back(items[i].commit);
      if (!given.values[i].is_granted()) list.back().is_wanted = false;
    }
    std::promise<std::vector<committed_value>> answer;
    auto answered = answer.get_future();
    store_->commit_run(session_, given.first, list, options,
                       [&](std::vector<committed_value> done) { answer.set_value(std::move(done)); });
    return answered.get();
  }
  std::vector<committed_value> put_run(pool_id pool, const std::vector<item>& items, const run_options& options = {}) {
    const granted_run given = begin(pool, items, {.owner = options.put.owner});
    fill(given, items);
    return commit(given, items, options);
  }
  pinned_run pin(pool_id pool, const std::vector<std::string>& keys, const get_options& options = {}) {
    const std::vector<std::string_view> names(keys.begin(), keys.end());
    auto found = store_->pin_run(session_, pool, names, options);
    EXPECT_TRUE(found) << found.error().message;
    return found ? *std::move(found) : pinned_run{};
  }
  std::string text_of(const pinned_run::pinned& one) const {
    std::string out;
    for (const segment& piece : one.segments)
      out.append(reinterpret_cast<const char*>(store_->arena().base + piece.offset_bytes), piece.size_bytes);
    return out;
  }
  static std::vector<item> items_of(std::size_t count, std::size_t size, std::uint64_t seed = 0) {
    std::vector<item> out;
    for (std::size_t i = 0; i < count; ++i) out.push_back({"key/" + std::to_string(i), pattern_bytes(size, seed + i)});
    return out;
  }

  void SetUp() override {
    StoreTest::SetUp();
    memory_ = make_pool("memory", durability::volatile_);
    session_ = store_->open_session();
  }
  pool_id memory_ = 0;
  session_id session_ = 0;
};

// What was replaced takes memory until the caller runs the task that it was given for that; nothing else waits for it.
TEST_F(Runs, ReplacedValuesGoWhenTheCallerSays) {
  const auto old = items_of(40, 16384), next = items_of(40, 16384, 1000);
  put_run(memory_, old);
  const std::uint64_t before = store_->stats().arena_used_bytes;
  std::vector<std::function<void()>> tasks;
  const auto done =
      put_run(memory_, next, {.afterwards = [&](std::function<void()> task) { tasks.push_back(std::move(task)); }});
  ASSERT_EQ(tasks.size(), 1u);
  for (std::size_t i = 0; i < next.size(); ++i) {
    ASSERT_TRUE(done[i].is_done());
    EXPECT_EQ(read(*store_, memory_, next[i].key), text(next[i].content));
  }
  EXPECT_EQ(store_->stats().arena_used_bytes, 2 * before);
  for (const auto& task : tasks) task();
  EXPECT_EQ(store_->stats().arena_used_bytes, before);
}

TEST_F(Runs, ValuesOfAllLengthsComeBack) {
  for (const pool_id pool : {memory_, pool_}) {
    std::vector<item> items;
    for (const std::size_t size : {0, 1, 63, 64, 65, 2048, 2049, 4096, 4097, 16384, 70'000, 1'000'000})
      items.push_back(
          {"of " + std::to_string(size), pattern_bytes(size, size), {.user_flags = static_cast<std::uint32_t>(size)}});
    const auto done = put_run(pool, items);
    const pinned_run found = [&] {
      std::vector<std::string> keys;
      for (const item& one : items) keys.push_back(one.key);
      return pin(pool, keys, {.verify = true});
    }();
    for (std::size_t i = 0; i < items.size(); ++i) {
      ASSERT_TRUE(done[i].is_done()) << items[i].key << ": " << done[i].refusal.message;
      EXPECT_EQ(read(*store_, pool, items[i].key), text(items[i].content)) << items[i].key;
      // (A durable value without bytes is in the index alone.)
      ASSERT_EQ(found.values[i].is_pinned, pool == memory_ || !items[i].content.empty()) << items[i].key;
      if (!found.values[i].is_pinned) continue;
      EXPECT_EQ(text_of(found.values[i]), text(items[i].content)) << items[i].key;
      EXPECT_EQ(found.values[i].info.version, done[i].done.version);
      EXPECT_EQ(found.values[i].info.crc32c, done[i].done.crc32c);
      EXPECT_EQ(found.values[i].info.user_flags, items[i].content.size());
      EXPECT_EQ(done[i].done.reached, pool == memory_ ? durability::volatile_ : durability::durable);
    }
    EXPECT_EQ(store_->stats().pins, items.size() - (pool == memory_ ? 0 : 1));
    ASSERT_TRUE(store_->unpin_run(session_, found.first));
    EXPECT_EQ(store_->unpin_run(session_, found.first).code(), EBADF);
    EXPECT_EQ(store_->stats().pins, 0u);
    EXPECT_EQ(store_->stats().grants, 0u);
  }
  reopen();
  EXPECT_EQ(read(*store_, pool_, "of 70000"), text(pattern_bytes(70'000, 70'000)));
  EXPECT_EQ(read(*store_, memory_, "of 70000"), "errno 2");
  expect_sound();
}

TEST_F(Runs, EachValueHasItsOwnOutcome) {
  ASSERT_TRUE(store_->put(memory_, "there", as_bytes("before")));
  const auto version = store_->stat(memory_, "there")->version;
  const bytes content = pattern_bytes(5000, 1);
  const std::vector<item> items = {
      {"new", content, {.precondition = condition::if_absent}},
      {"new", content, {.precondition = condition::if_absent}},  // behind the first one
      {"there", content, {.precondition = condition::if_version, .expected_version = version + 1}},
      {"there", content, {.precondition = condition::if_version, .expected_version = version}},
      {"absent", content, {.precondition = condition::if_present}},
      {"", content},
      {std::string(kMaxKeyBytes + 1, 'k'), content},
      {"timed", content, {.ttl_ms = 5}},
  };
  const auto done = put_run(memory_, items);
  std::vector<int> codes;
  for (const committed_value& one : done) codes.push_back(one.refusal.code);
  EXPECT_EQ(codes, (std::vector<int>{0, EEXIST, ESTALE, 0, ENOENT, 0, 0, EINVAL}));
  const granted_run given = begin(memory_, items);
  EXPECT_EQ(given.values[5].refusal.code, EINVAL);
  EXPECT_EQ(given.values[6].refusal.code, EFBIG);
  ASSERT_TRUE(store_->abort_run(session_, given.first));
  EXPECT_EQ(store_->abort_run(session_, given.first).code(), EBADF);
  EXPECT_GT(done[3].done.version, version);
  EXPECT_EQ(read(*store_, memory_, "there"), text(content));
  EXPECT_EQ(store_->stats().failed, 3u);  // by conditions
  EXPECT_EQ(store_->pool(memory_)->keys, 2u);
  EXPECT_EQ(store_->pool(memory_)->bytes, 2 * content.size());
}

TEST_F(Runs, OneKeyTwiceHasTheLastValue) {
  std::vector<item> items;
  for (int i = 0; i < 40; ++i)
    items.push_back({"same " + std::to_string(i % 3), pattern_bytes(3000, static_cast<unsigned>(i))});
  const auto done = put_run(memory_, items);
  for (std::size_t i = 3; i < items.size(); ++i) EXPECT_GT(done[i].done.version, done[i - 3].done.version);
  for (std::size_t i = items.size() - 3; i < items.size(); ++i)
    EXPECT_EQ(read(*store_, memory_, items[i].key), text(items[i].content));
  EXPECT_EQ(store_->pool(memory_)->keys, 3u);
}

TEST_F(Runs, QuotasOfPoolsAndOwnersHold) {
  pool_options limited;
  limited.level = durability::volatile_;
  limited.quota_bytes = 50'000, limited.quota_keys = 4;
  const pool_id pool = store_->create_pool("limited", limited)->id;
  auto items = items_of(6, 10'000);
  items.push_back({"long", pattern_bytes(60'000, 9)});
  const granted_run given = begin(pool, items);
  EXPECT_EQ(given.values[6].refusal.code, EDQUOT);
  fill(given, items);
  const auto done = commit(given, items);
  EXPECT_EQ(std::count_if(done.begin(), done.end(), [](const committed_value& one) { return one.refusal.code == EDQUOT; }),
            2);
  EXPECT_EQ(store_->pool(pool)->keys, 4u);
  EXPECT_EQ(store_->pool(pool)->bytes, 40'000u);

  const owner_id owner = store_->need_owner("alice");
  store_->set_quotas({{"alice", 25'000, 0}});
  const auto owned = put_run(memory_, items_of(4, 10'000), {.put = {.owner = owner}});
  EXPECT_EQ(std::count_if(owned.begin(), owned.end(), [](const committed_value& one) { return one.refusal.code == EDQUOT; }),
            2);
  EXPECT_EQ(store_->list_owners().front().bytes, 20'000u);
  EXPECT_EQ(store_->stats().grants, 0u);
  const granted_run beyond = begin(memory_, items_of(2, 10'000, 7), {.owner = owner});
  EXPECT_TRUE(beyond.values[0].is_granted());  // in place of one that it holds
  const granted_run other = begin(memory_, {{"another", pattern_bytes(10'000, 1)}}, {.owner = owner});
  EXPECT_EQ(other.values[0].refusal.code, EDQUOT);
}

TEST_F(Runs, ARepeatedRequestIsAnsweredNotApplied) {
  for (const durability level : {durability::volatile_, durability::logged}) {
    const auto items = items_of(5, 5000, 1), others = items_of(5, 5000, 100);
    run_options first;
    first.put.level = level;
    first.put.request = {70 + static_cast<std::uint64_t>(level), 1};
    const auto once = put_run(pool_, items, first);
    run_options second = first;
    second.put.request.sequence = 6;
    ASSERT_TRUE(put_run(pool_, others, second).front().is_done());
    // As a client sends it whose connection broke; what is beyond the repeated ones is new.
    auto more = items;
    more.push_back({"key/4", pattern_bytes(10, 3)});
    first.put.request.sequence = 1;
    const auto again = put_run(pool_, items, first);
    for (std::size_t i = 0; i < items.size(); ++i) {
      ASSERT_TRUE(again[i].is_done()) << again[i].refusal.message;
      EXPECT_TRUE(again[i].done.repeated);
      EXPECT_EQ(again[i].done.version, once[i].done.version);
      EXPECT_EQ(read(items[i].key), text(others[i].content));
    }
    // A single put knows what a run did, and the other way round.
    const auto single = store_->put(pool_, "key/0", items[0].content, {.level = level, .request = first.put.request});
    ASSERT_TRUE(single);
    EXPECT_TRUE(single->repeated);
    ASSERT_TRUE(
        store_->put(pool_, "key/0", as_bytes("single"), {.level = level, .request = {first.put.request.client, 20}}));
    first.put.request.sequence = 20;
    EXPECT_TRUE(put_run(pool_, {{"key/0", items[0].content}}, first).front().done.repeated);
    EXPECT_EQ(read("key/0"), "single");
    first.put.request.sequence = kDedupeWindow + 20;
    ASSERT_TRUE(put_run(pool_, {{"key/0", items[0].content}}, first).front().is_done());
    first.put.request.sequence = 20;
    EXPECT_EQ(put_run(pool_, {{"key/0", items[0].content}}, first).front().refusal.code, EINVAL);
    EXPECT_EQ(put_run(pool_, {{"key/0", items[0].content}}, {.put = {.request = {5, 0}}}).front().refusal.code, EINVAL);
  }
}

// The keys of some are in the index, so that these go the long way beside the others.
TEST_F(Runs, VolatileValuesTakeThePlaceOfDurableOnes) {
  auto items = items_of(40, 5000);
  for (std::size_t i = 0; i < items.size(); i += 3) ASSERT_EQ(put(items[i].key, "durable"), 0);
  const auto done = put_run(pool_, items, {.put = {.level = durability::volatile_}});
  for (std::size_t i = 0; i < items.size(); ++i) {
    ASSERT_TRUE(done[i].is_done()) << done[i].refusal.message;
    EXPECT_EQ(read(items[i].key), text(items[i].content));
  }
  EXPECT_EQ(store_->pool(pool_)->keys, 40u);
  ASSERT_TRUE(put_run(pool_, items_of(40, 3000, 50), {.put = {.level = durability::logged}}).back().is_done());
  expect_sound();
  reopen();
  EXPECT_EQ(read("key/1"), text(pattern_bytes(3000, 51)));
}

TEST_F(Runs, WhatFindsNoRoomIsRefusedAndAllComesBack) {
  const std::uint64_t before = store_->stats().arena_used_bytes;
  const auto items = items_of(64, 400'000);  // 25 MB into 16 MiB
  const granted_run given = begin(memory_, items);
  std::size_t granted = 0;
  std::vector<segment> places;
  for (const auto& one : given.values) {
    granted += one.is_granted() ? 1 : 0;
    if (!one.is_granted()) { EXPECT_EQ(one.refusal.code, ENOSPC); }
    places.insert(places.end(), one.segments.begin(), one.segments.end());
  }
  EXPECT_GE(granted, 30u);
  EXPECT_LT(granted, 42u);
  std::sort(places.begin(), places.end(),
            [](const segment& a, const segment& b) { return a.offset_bytes < b.offset_bytes; });
  for (std::size_t i = 1; i < places.size(); ++i)
    ASSERT_LE(places[i - 1].offset_bytes + places[i - 1].size_bytes, places[i].offset_bytes) << "two values in one place";
  EXPECT_EQ(store_->stats().grants, granted);
  fill(given, items);
  const auto done = commit(given, items);
  for (std::size_t i = 0; i < items.size(); ++i)
    if (given.values[i].is_granted()) { ASSERT_TRUE(done[i].is_done()) << done[i].refusal.message; }
  // Now the values can leave for the disk.
  ASSERT_TRUE(put_run(memory_, items_of(30, 400'000, 200)).back().is_done());
  EXPECT_EQ(read(*store_, memory_, "key/29"), text(pattern_bytes(400'000, 229)));
  for (const item& one : items) (void)store_->erase(memory_, one.key);
  EXPECT_EQ(store_->stats().arena_used_bytes, before);
}

TEST_F(Runs, ASessionsEndFreesThem) {
  const std::uint64_t before = store_->stats().arena_used_bytes;
  (void)begin(memory_, items_of(10, 5000));
  EXPECT_TRUE(store_->holds_memory(session_));
  EXPECT_EQ(store_->delete_pool(memory_).code(), EBUSY);
  store_->close_session(session_);
  EXPECT_EQ(store_->stats().arena_used_bytes, before);
  EXPECT_EQ(store_->stats().grants, 0u);
  ASSERT_TRUE(store_->delete_pool(memory_));
  EXPECT_EQ(store_->begin_run(session_, pool_, std::vector<run_put>{{"k", 100}}).code(), EBADF);
  EXPECT_EQ(store_->begin_run(session_, 4711, std::vector<run_put>{{"k", 100}}).code(), ENXIO);
  EXPECT_EQ(store_->stats().arena_used_bytes, before);
}

TEST_F(Runs, SingleCallsTakeAValueOutOfItsRun) {
  const auto items = items_of(5, 100'000);
  const granted_run given = begin(pool_, items);
  fill(given, items);
  ASSERT_TRUE(store_->abort(session_, given.first + 1));
  EXPECT_EQ(store_->abort(session_, given.first + 1).code(), EBADF);
  ASSERT_TRUE(store_->commit(session_, given.first + 2));
  ASSERT_TRUE(store_->arrived(session_, given.first + 3, 50'000));
  EXPECT_EQ(store_->stats().grants, 3u);
  const auto done = commit(given, items);
  std::vector<int> codes;
  for (const committed_value& one : done) codes.push_back(one.refusal.code);
  EXPECT_EQ(codes, (std::vector<int>{0, EBADF, EBADF, 0, 0}));
  for (const std::size_t i : {0, 2, 3, 4}) EXPECT_EQ(read(items[i].key), text(items[i].content)) << i;
  EXPECT_EQ(read("key/1"), "errno 2");
  EXPECT_EQ(store_->stats().grants, 0u);
  EXPECT_EQ(commit(given, items).front().refusal.code, EBADF);

  const pinned_run found = pin(pool_, {"key/0", "key/2", "key/3"});
  ASSERT_TRUE(store_->unpin(session_, found.first + 1));
  EXPECT_EQ(store_->unpin(session_, found.first + 1).code(), EBADF);
  EXPECT_EQ(store_->unpin(session_, found.first + 3).code(), EBADF);
  EXPECT_EQ(store_->stats().pins, 2u);
  ASSERT_TRUE(store_->unpin_run(session_, found.first));
  EXPECT_FALSE(store_->holds_memory(session_));
}

TEST_F(Runs, PinnedValuesStayWhatIsPutMeanwhile) {
  const auto items = items_of(20, 5000);
  ASSERT_TRUE(put_run(memory_, items).back().is_done());
  std::vector<std::string> keys;
  for (const item& one : items) keys.push_back(one.key);
  keys.push_back("absent");
  keys.push_back("");
  const pinned_run found = pin(memory_, keys);
  for (int round = 1; round < 5; ++round)
    ASSERT_TRUE(put_run(memory_, items_of(20, 5000, 100u * static_cast<unsigned>(round))).back().is_done());
  for (std::size_t i = 0; i < items.size(); ++i) EXPECT_EQ(text_of(found.values[i]), text(items[i].content));
  EXPECT_FALSE(found.values[20].is_pinned);
  EXPECT_EQ(found.values[20].refusal.code, 0);
  EXPECT_EQ(found.values[21].refusal.code, EINVAL);
  ASSERT_TRUE(store_->unpin_run(session_, found.first));
  EXPECT_EQ(pin(memory_, {"absent"}).first, 0u);
}

TEST_F(Runs, AChangedByteIsFoundWhenAsked) {
  const auto items = items_of(3, 5000);
  ASSERT_TRUE(put_run(memory_, items).back().is_done());
  const pinned_run before = pin(memory_, {"key/0", "key/1"});
  store_->arena().base[before.values[1].segments[0].offset_bytes + 7] ^= std::byte{1};
  const pinned_run found = pin(memory_, {"key/0", "key/1", "key/2"}, {.verify = true});
  EXPECT_TRUE(found.values[0].is_pinned);
  EXPECT_EQ(found.values[1].refusal.code, EBADMSG);
  EXPECT_TRUE(found.values[2].is_pinned);
  EXPECT_EQ(store_->stats().pins, 4u);
}

TEST_F(Runs, AWrongLengthIsRefusedAndUsesTheGrantsUp) {
  const auto items = items_of(3, 100);
  const granted_run given = begin(memory_, items);
  std::size_t refused = 0;
  store_->commit_run(session_, given.first, std::vector<run_commit>(2), {}, [&](const std::vector<committed_value>& done) {
    for (const committed_value& one : done) refused += one.refusal.code == EINVAL ? 1 : 0;
  });
  EXPECT_EQ(refused, 2u);
  EXPECT_EQ(store_->stats().grants, 0u);
}

class RunsOfCaches : public Runs {
 protected:
  engine_options options() override {
    auto made = StoreTest::options();
    made.cache_of = [](const pool_info& pool) {
      return pool.name == "cache" ? std::optional(cache_terms{.memory_bytes = 100 * kBlockBytes}) : std::nullopt;
    };
    made.on_change = [this](const key_change& one) {
      const std::lock_guard hold(mutex_);
      auto& mine = (one.kind == change::put ? changes_ : erases_)[std::string(one.key)];
      mine.push_back(one.version);
      if (one.kind == change::erased && mine.back() != changes_[std::string(one.key)].back()) ++strange_erases_;
    };
    return made;
  }
  std::mutex mutex_;
  std::map<std::string, std::vector<version_t>> changes_, erases_;
  int strange_erases_ = 0;  // of another version than the last put's
};

TEST_F(RunsOfCaches, KeepToTheirShare) {
  const pool_id cache = make_pool("cache", durability::volatile_);
  auto items = items_of(300, 4000);
  items[299].commit.ttl_ms = 1;
  const auto done = put_run(cache, items);
  for (const committed_value& one : done) ASSERT_TRUE(one.is_done()) << one.refusal.message;
  EXPECT_LE(store_->pool(cache)->counts.memory_bytes, 100 * kBlockBytes);
  EXPECT_GE(store_->pool(cache)->keys, 50u);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(pin(cache, {"key/299"}).values[0].is_pinned);
  EXPECT_EQ(begin(cache, {{"long", pattern_bytes(101 * kBlockBytes, 1)}}).values[0].refusal.code, EFBIG);
}

TEST_F(RunsOfCaches, WatchersSeeAKeysChangesInOrder) {
  std::vector<std::thread> writers;
  std::atomic<int> bad{0};
  for (unsigned w = 0; w < 3; ++w)
    writers.emplace_back([&, w] {
      const session_id mine = store_->open_session();
      for (unsigned round = 0; round < 60; ++round) {
        std::vector<std::string> names;
        for (unsigned i = 0; i < 50; ++i) names.push_back("k" + std::to_string((i * 7 + round + w) % 30));
        std::vector<run_put> puts;
        for (const std::string& name : names) puts.push_back({name, 3000});
        const auto given = store_->begin_run(mine, memory_, puts);
        if (!given) {
          ++bad;
          continue;
        }
        store_->commit_run(mine, given->first, std::vector<run_commit>(puts.size()), {.take_crc = true},
                           [&](const std::vector<committed_value>& done) {
                             for (const committed_value& one : done) bad += one.is_done() ? 0 : 1;
                           });
      }
    });
  for (std::thread& one : writers) one.join();
  EXPECT_EQ(bad, 0);
  std::size_t count = 0;
  for (const auto& [key, versions] : changes_) {
    EXPECT_TRUE(std::is_sorted(versions.begin(), versions.end())) << key;
    EXPECT_EQ(store_->stat(memory_, key)->version, versions.back()) << key;
    count += versions.size();
  }
  EXPECT_EQ(count, 3u * 60 * 50);
}

// The versions of a run are taken before its values are put, one at a time, beside single puts and erases of the same keys.
TEST_F(RunsOfCaches, AKeysVersionsGrowBesideSinglePutsErasesAndSkippedVersions) {
  std::atomic<bool> is_over{false};
  std::atomic<int> bad{0};
  std::vector<std::thread> others;
  others.emplace_back([&] {
    for (unsigned i = 0; !is_over; ++i) bad += store_->put(memory_, "k" + std::to_string(i % 30), as_bytes("one")) ? 0 : 1;
  });
  others.emplace_back([&] {
    for (unsigned i = 0; !is_over; ++i) (void)store_->erase(memory_, "k" + std::to_string(i % 30));
  });
  others.emplace_back([&] {
    for (; !is_over; std::this_thread::sleep_for(std::chrono::milliseconds(1))) store_->skip_versions(3);
  });
  std::vector<std::thread> writers;
  for (unsigned w = 0; w < 2; ++w)
    writers.emplace_back([&, w] {
      const session_id mine = store_->open_session();
      for (unsigned round = 0; round < 300; ++round) {
        std::vector<std::string> names;
        for (unsigned i = 0; i < 60; ++i) names.push_back("k" + std::to_string((i * 7 + round + w) % 30));
        std::vector<run_put> puts;
        for (const std::string& name : names) puts.push_back({name, 3});
        const auto given = store_->begin_run(mine, memory_, puts);
        bad += given ? 0 : 1;
        if (given)
          store_->commit_run(mine, given->first, std::vector<run_commit>(puts.size()), {.take_crc = true},
                             [&](const std::vector<committed_value>& done) {
                               for (const committed_value& one : done) bad += one.is_done() ? 0 : 1;
                             });
      }
    });
  for (std::thread& one : writers) one.join();
  is_over = true;
  for (std::thread& one : others) one.join();
  EXPECT_EQ(bad, 0);
  EXPECT_EQ(strange_erases_, 0);
  for (const auto& [key, versions] : changes_)
    EXPECT_EQ(std::adjacent_find(versions.begin(), versions.end(), std::greater_equal()), versions.end()) << key;
}

// Durable values that come together lie in extents, written side by side; a few of the same lengths stay in the log.
TEST_F(Runs, ManyDurableValuesAreWrittenTogether) {
  const auto disk_used = [&] { return store_->stats().disk_used_bytes; };
  for (const durability level : {durability::durable, durability::logged}) {
    const std::uint64_t before = disk_used();
    auto items = items_of(100, 16384, 1 + static_cast<unsigned>(level));
    items.push_back({"short", pattern_bytes(3000, 5)});
    items.push_back({"odd", pattern_bytes(10'001, 6)});
    const std::uint64_t syncs = store_->stats().syncs;
    const auto done = put_run(pool_, items, {.put = {.level = level}});
    EXPECT_LE(store_->stats().syncs - syncs, 12u);  // the values', and their records' in a few groups
    for (std::size_t i = 0; i < items.size(); ++i) {
      ASSERT_TRUE(done[i].is_done()) << done[i].refusal.message;
      EXPECT_EQ(done[i].done.reached, level);
    }
    EXPECT_EQ(disk_used() - before, 100 * 16384u + 12'288);
    // (What they replaced is free after a sync.)
    const auto few = items_of(10, 16384, 77);
    for (const committed_value& one : put_run(pool_, few, {.put = {.level = level}})) ASSERT_TRUE(one.is_done());
    for (std::size_t i = 0; i < few.size(); ++i) items[i] = few[i];
    reopen();
    session_ = store_->open_session();
    EXPECT_EQ(disk_used(), 90 * 16384u + 12'288);
    for (const item& one : items) EXPECT_EQ(read(*store_, pool_, one.key), text(one.content)) << one.key;
    expect_sound();
    for (const item& one : items) ASSERT_TRUE(store_->erase(pool_, one.key));
    reopen();
    session_ = store_->open_session();
    EXPECT_EQ(disk_used(), 0u);
  }
}

// A later value of a key, in another run that has begun meanwhile, does not lose against one that takes longer to be
// written.
TEST_F(Runs, DurableValuesOfOneKeyStayInTheirOrder) {
  std::atomic<int> left{0};
  std::map<std::string, bytes> last;
  for (int round = 0; round < 12; ++round) {
    std::vector<std::vector<item>> runs;
    for (int r = 0; r < 8; ++r) {
      const bool is_long = (r + round) % 2 == 0;
      std::vector<item> items;
      for (int i = 0; i < 40; ++i)
        items.push_back(
            {"k" + std::to_string(i * 7 % 30), pattern_bytes(is_long ? 9000 + i : 100 + i, round * 1000 + r * 40 + i)});
      runs.push_back(std::move(items));
    }
    std::vector<granted_run> given;
    for (const auto& items : runs) {
      given.push_back(begin(pool_, items));
      fill(given.back(), items);
    }
    for (std::size_t r = 0; r < runs.size(); ++r) {
      ++left;
      const std::vector<run_commit> list(runs[r].size());
      store_->commit_run(session_, given[r].first, list, {}, [&](const std::vector<committed_value>& done) {
        for (const committed_value& one : done) EXPECT_TRUE(one.is_done()) << one.refusal.message;
        --left;
      });
      for (const item& one : runs[r]) last[one.key] = one.content;
    }
    while (left != 0) std::this_thread::yield();
    for (const auto& [key, content] : last) ASSERT_EQ(read(key), text(content)) << key << " in round " << round;
  }
}

class RunsOnASmallDisk : public Runs {
 protected:
  engine_options options() override {
    auto made = StoreTest::options();
    made.disk_limit_bytes = std::uint64_t{4} << 20;
    return made;
  }
};

// Values that the log can take are not refused for want of extents, and the store does not count as full.
TEST_F(RunsOnASmallDisk, WhatFindsNoExtentsGoesToTheLog) {
  const auto items = items_of(400, 16384);
  const auto done = put_run(pool_, items, {.put = {.level = durability::durable}});
  for (const committed_value& one : done) ASSERT_TRUE(one.is_done()) << one.refusal.message;
  EXPECT_FALSE(store_->stats().full);
  EXPECT_GE(store_->stats().disk_used_bytes, std::uint64_t{3} << 20);
  reopen();
  session_ = store_->open_session();
  for (const item& one : items) ASSERT_EQ(read(*store_, pool_, one.key), text(one.content)) << one.key;
  expect_sound();
}

// Runs and single calls in any order, against a map.
class RunsModel : public Runs, public ::testing::WithParamInterface<unsigned> {};
TEST_P(RunsModel, AgreesWithAMap) {
  std::mt19937 random(GetParam());
  std::map<std::string, std::string> model;
  const durability levels[] = {durability::volatile_, durability::volatile_, durability::logged};
  std::uint64_t sequence = 1;
  for (int step = 0; step < 120; ++step) {
    const auto key = [&] { return "k" + std::to_string(random() % 40); };
    if (random() % 4 == 0) {
      const std::string name = key();
      ASSERT_EQ(store_->erase(pool_, name).ok(), model.erase(name) != 0);
      continue;
    }
    std::vector<item> items;
    for (std::size_t i = 0; i < 1 + random() % 30; ++i) {
      const unsigned longest[] = {300, 300, 9000, 30'000};  // of the last, many go to extents together
      items.push_back({key(), pattern_bytes(random() % longest[(random() + step) % 4], random())});
      if (random() % 4 == 0) items.back().commit.precondition = condition::if_absent;
    }
    const durability level = levels[random() % 3];
    const auto done = put_run(pool_, items, {.put = {.level = level, .request = {9, sequence}}});
    sequence += items.size();
    std::map<std::string, std::pair<version_t, std::size_t>> last;
    for (std::size_t i = 0; i < items.size(); ++i) {
      ASSERT_TRUE(done[i].is_done() || done[i].refusal.code == EEXIST) << done[i].refusal.message;
      if (done[i].is_done()) last[items[i].key] = std::max(last[items[i].key], {done[i].done.version, i});
      // The first of a run is absent if nothing was there before it.
      const bool is_first = std::none_of(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(i),
                                         [&](const item& one) { return one.key == items[i].key; });
      if (is_first && items[i].commit.precondition == condition::if_absent) {
        ASSERT_EQ(done[i].is_done(), model.count(items[i].key) == 0);
      }
    }
    for (const auto& [name, place] : last) model[name] = text(items[place.second].content);
    for (const auto& [name, content] : model) ASSERT_EQ(read(name), content) << name;
  }
  EXPECT_EQ(store_->pool(pool_)->keys, model.size());
  find_options all;
  EXPECT_EQ(store_->find(pool_, all)->keys.size(), model.size());
  expect_sound();
}
INSTANTIATE_TEST_SUITE_P(Seeds, RunsModel, ::testing::Range(1u, 5u));

}  // namespace
}  // namespace pl::store
