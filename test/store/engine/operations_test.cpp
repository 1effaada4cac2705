// SPDX-License-Identifier: Apache-2.0
// Pools, find, batches, repeated requests, and a long random life compared with a map.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "store/engine/engine.hpp"
#include "test/store/engine/store_fixture.hpp"

namespace pl::store {
namespace {

using Operations = StoreTest;

TEST_F(Operations, PoolsKeepTheirOptionsAndAreListed) {
  pool_options settings;
  settings.level = durability::logged, settings.quota_bytes = 100, settings.quota_keys = 2, settings.tags = "acl";
  const auto made = store_->create_pool("second", settings);
  ASSERT_TRUE(made);
  settings.quota_keys = 3;
  ASSERT_TRUE(store_->configure_pool(made->id, settings));
  reopen();
  const auto found = store_->find_pool("second");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->id, made->id);
  EXPECT_EQ(found->options.level, durability::logged);
  EXPECT_EQ(found->options.quota_keys, 3u);
  EXPECT_EQ(found->options.tags, "acl");
  EXPECT_EQ(store_->list_pools().size(), 2u);
  EXPECT_EQ(store_->find_pool("third").code(), ENXIO);
}

TEST_F(Operations, QuotasHoldAndRefuseOnlyWhatExceedsThem) {
  for (const durability level : {durability::durable, durability::volatile_}) {
    pool_options settings;
    settings.level = level, settings.quota_bytes = 1000, settings.quota_keys = 3;
    const auto made = store_->create_pool(name_of(level), settings);
    ASSERT_TRUE(made);
    const pool_id pool = made->id;
    EXPECT_EQ(store_->put(pool, "a", pattern_bytes(900, 1)).code(), 0);
    EXPECT_EQ(store_->put(pool, "b", pattern_bytes(101, 1)).code(), EDQUOT);
    EXPECT_EQ(store_->put(pool, "a", pattern_bytes(1000, 1)).code(), 0);
    EXPECT_EQ(store_->put(pool, "a", pattern_bytes(10, 1)).code(), 0);
    EXPECT_EQ(store_->put(pool, "b", pattern_bytes(10, 1)).code(), 0);
    EXPECT_EQ(store_->put(pool, "c", pattern_bytes(10, 1)).code(), 0);
    EXPECT_EQ(store_->put(pool, "d", pattern_bytes(10, 1)).code(), EDQUOT);
    EXPECT_EQ(store_->erase(pool, "b").code(), 0);
    EXPECT_EQ(store_->put(pool, "d", pattern_bytes(980, 1)).code(), 0);
    EXPECT_EQ(store_->pool(pool)->keys, 3u);
    EXPECT_EQ(store_->pool(pool)->bytes, 1000u);
  }
}

// Whatever the page, the prefix and the pattern: what a list of all keys says. Some keys are in the index, some in memory.
TEST_F(Operations, PagesAreThoseOfASortedList) {
  std::map<std::string, std::size_t> all;
  for (int i = 0; i < 3000; ++i) {
    const std::string key = (i % 3 == 0 ? "run7/" : i % 3 == 1 ? "run" : "walk/") + std::to_string(i * 7919 % 3000);
    const std::size_t size = static_cast<std::size_t>(i % 50 + 1);
    put_options settings;
    settings.level = i % 2 == 0 ? durability::volatile_ : durability::logged;
    ASSERT_TRUE(store_->put(pool_, key, pattern_bytes(size, 1), settings));
    all[key] = size;
  }
  struct search {
    std::string prefix, regex;
    std::function<bool(const std::string&)> wanted;
  };
  const auto begins = [](std::string prefix) {
    return [prefix](const std::string& key) { return key.starts_with(prefix); };
  };
  const search searches[] = {{"", "", begins("")},
                             {"run7/", "", begins("run7/")},
                             {"none", "", begins("none")},
                             {"", "^run7/", begins("run7/")},
                             {"run", "^run7/", begins("run7/")},
                             {"run7/1", "^run7/", begins("run7/1")},
                             {"walk", "^run7/", [](const std::string&) { return false; }},
                             {"", "^run7*/?9",
                              [](const std::string& key) {
                                return key.starts_with("run7/9") || key.starts_with("run9") ||
                                       (key.starts_with("run7") && key.find_first_not_of('7', 3) != std::string::npos &&
                                        key[key.find_first_not_of('7', 3)] == '9');
                              }},
                             {"", "99$", [](const std::string& key) { return key.ends_with("99"); }}};
  for (const search& one : searches) {
    std::vector<std::string> expected;
    for (const auto& [key, size] : all)
      if (one.wanted(key)) expected.push_back(key);
    for (const std::size_t limit : {std::size_t{1}, std::size_t{7}, std::size_t{1000}}) {
      if (limit == 1 && expected.size() > 500) continue;
      std::vector<std::string> found;
      find_options options;
      options.prefix = one.prefix, options.regex = one.regex, options.limit = limit;
      for (;;) {
        const auto page = store_->find(pool_, options);
        ASSERT_TRUE(page) << page.error().message;
        ASSERT_LE(page->keys.size(), limit);
        ASSERT_EQ(page->keys.size(), page->values.size());
        for (std::size_t i = 0; i < page->keys.size(); ++i) EXPECT_EQ(page->values[i].length_bytes, all[page->keys[i]]);
        found.insert(found.end(), page->keys.begin(), page->keys.end());
        if (!page->more) break;
        options.after = page->last;
      }
      EXPECT_EQ(found, expected) << one.prefix << ", " << one.regex << ", " << limit;
    }
  }
}

TEST_F(Operations, ADeletedPoolLeavesNothing) {
  const pool_id other = make_pool("other", durability::durable);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(store_->put(other, std::to_string(i), pattern_bytes(i % 2 == 0 ? kSmall : kLarge, 1)));
    ASSERT_TRUE(store_->put(other, "v" + std::to_string(i), pattern_bytes(kSmall, 1), {.level = durability::volatile_}));
  }
  ASSERT_EQ(put("kept", "value"), 0);
  EXPECT_TRUE(store_->delete_pool(other));
  EXPECT_EQ(store_->put(other, "k", as_bytes("v")).code(), ENXIO);
  EXPECT_EQ(store_->stats().disk_used_bytes, 0u);
  const auto again = store_->create_pool("other", {});
  ASSERT_TRUE(again);
  EXPECT_NE(again->id, other);
  EXPECT_EQ(read(*store_, again->id, "1"), "errno 2");
  expect_sound();
  reopen();
  EXPECT_EQ(read("kept"), "value");
  EXPECT_EQ(store_->delete_pool(again->id).code(), 0);
  const auto third = store_->create_pool("third", {});
  EXPECT_GT(third->id, again->id);  // ids are not reused
}

TEST_F(Operations, FindPagesThroughIndexAndMemory) {
  std::set<std::string> expected;
  for (int i = 0; i < 300; ++i) {
    const std::string key = (i % 3 == 0 ? "a/" : "b/") + std::to_string(i);
    ASSERT_EQ(put(key, "v", {.level = i % 2 == 0 ? durability::volatile_ : durability::logged}), 0);
    if (i % 3 == 0) expected.insert(key);
  }
  std::set<std::string> seen;
  find_options settings;
  settings.prefix = "a/";
  settings.limit = 7;
  for (bool more = true; more;) {
    const auto page = store_->find(pool_, settings);
    ASSERT_TRUE(page);
    for (const std::string& key : page->keys) EXPECT_TRUE(seen.insert(key).second) << "twice: " << key;
    EXPECT_LE(page->keys.size(), 7u);
    more = page->more;
    settings.after = page->last;
  }
  EXPECT_EQ(seen, expected);

  const auto some = store_->find(pool_, {.prefix = "b", .regex = "/1.$", .after = {}});
  ASSERT_TRUE(some);
  EXPECT_EQ(some->keys, (std::vector<std::string>{"b/10", "b/11", "b/13", "b/14", "b/16", "b/17", "b/19"}));
  EXPECT_EQ(store_->find(pool_, {.prefix = {}, .regex = "(", .after = {}}).code(), EINVAL);
  EXPECT_EQ(store_->find(pool_, {.prefix = {}, .regex = ".*{10,}{10,}{10,}{10,}{10,}", .after = {}}).code(), EINVAL);
  EXPECT_TRUE(store_->find(pool_, {.prefix = "\xff\xff", .regex = {}, .after = {}})->keys.empty());
}

TEST_F(Operations, ABatchsItemsAreIndependentUnlessAtomic) {
  const bytes large = pattern_bytes(kLarge, 1);
  ASSERT_EQ(put("there", "old"), 0);
  std::vector<batch_operation> some(4);
  some[0].key = "a", some[0].value = as_bytes("1");
  some[1].key = "there", some[1].value = as_bytes("2"), some[1].precondition = condition::if_absent;
  some[2].key = "large", some[2].value = large;
  some[3].key = "there", some[3].action = batch_operation::kind::erase;
  auto done = store_->batch(pool_, some, {.atomic = true});
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(done->items[1].error, EEXIST);
  for (const std::size_t i : {0u, 2u, 3u}) EXPECT_EQ(done->items[i].error, ECANCELED);
  EXPECT_EQ(read("a"), "errno 2");
  EXPECT_EQ(read("there"), "old");
  EXPECT_EQ(store_->pool(pool_)->keys, 1u);
  EXPECT_EQ(store_->stats().disk_used_bytes, 0u);

  done = store_->batch(pool_, some, {});
  ASSERT_TRUE(done);
  EXPECT_EQ(done->reached, durability::durable);
  EXPECT_EQ(done->items[0].error, 0);
  EXPECT_EQ(done->items[1].error, EEXIST);
  EXPECT_EQ(done->items[2].error, 0);
  EXPECT_EQ(done->items[3].error, 0);
  reopen();
  EXPECT_EQ(read("a"), "1");
  EXPECT_TRUE(read("large") == text(large));
  EXPECT_EQ(read("there"), "errno 2");
  EXPECT_EQ(store_->pool(pool_)->keys, 2u);
  expect_sound();
}

TEST_F(Operations, ARepeatedRequestIsAnsweredNotApplied) {
  for (const durability level : {durability::durable, durability::volatile_}) {
    const std::uint64_t client = 77 + static_cast<std::uint64_t>(level);
    const put_options first{.level = level, .request = {client, 1}};
    const auto once = store_->put(pool_, "k", as_bytes("first"), first);
    ASSERT_TRUE(once);
    ASSERT_EQ(put("k", "second", {.level = level, .request = {client, 2}}), 0);
    const auto again = store_->put(pool_, "k", as_bytes("first"), first);
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_TRUE(again->repeated);
    EXPECT_EQ(again->version, once->version);
    EXPECT_EQ(read("k"), "second");
    const erase_options gone{.level = level, .request = {client, 3}};
    ASSERT_TRUE(store_->erase(pool_, "k", gone));
    EXPECT_TRUE(store_->erase(pool_, "k", gone)->repeated);
    EXPECT_EQ(put("k", "x", {.request = {client, 0}}), EINVAL);
  }
  const std::uint64_t repeated = store_->stats().repeated_requests;
  reopen();
  EXPECT_TRUE(store_->erase(pool_, "k", {.request = {77 + static_cast<std::uint64_t>(durability::durable), 3}})->repeated);
  EXPECT_EQ(repeated, 4u);
}

// Between the moment in which a change can be seen and that in which its request is remembered: a client whose connection
// broke sends it again, and must not hear that the key was not there.
class OperationsMeanwhile : public StoreTest {
 protected:
  engine_options options() override {
    auto made = StoreTest::options();
    made.on_point = [this](std::string_view point) {
      if (point == "commit.keys-published" && meanwhile_) std::exchange(meanwhile_, nullptr)();
    };
    return made;
  }
  std::function<void()> meanwhile_;
};

TEST_F(OperationsMeanwhile, ARepeatedRequestIsAnsweredNotApplied) {
  const erase_options gone{.request = {9, 2}};
  result<erase_result> again = failure{ENOENT, "not asked"};
  std::thread repeats;
  ASSERT_EQ(put("k", "first", {.level = durability::durable, .request = {9, 1}}), 0);
  meanwhile_ = [&] {
    repeats = std::thread([&] { again = store_->erase(pool_, "k", gone); });
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // without the mend it is answered by now
  };
  const auto once = store_->erase(pool_, "k", gone);
  ASSERT_TRUE(once) << once.error().message;
  ASSERT_TRUE(repeats.joinable());
  repeats.join();
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_TRUE(again->repeated);
  EXPECT_EQ(again->version, once->version);
  EXPECT_EQ(read("k"), "errno 2");
}

TEST_F(Operations, RequestsOlderThanTheWindowAreRefused) {
  const pool_id quick = make_pool("quick", durability::volatile_);
  for (std::uint64_t i = 1; i <= kDedupeWindow + 1; ++i)
    ASSERT_TRUE(store_->put(quick, "k", as_bytes("v"), {.request = {5, i}}));
  EXPECT_EQ(store_->put(quick, "k", as_bytes("v"), {.request = {5, 1}}).code(), EINVAL);
  EXPECT_TRUE(store_->put(quick, "k", as_bytes("v"), {.request = {5, 2}})->repeated);
}

TEST_F(Operations, RequestsOfAGroupAreForgottenForGood) {
  for (const durability level : {durability::durable, durability::volatile_})
    for (const std::uint16_t group : {std::uint16_t{1}, std::uint16_t{2}}) {
      const std::uint64_t client = 10 * group + static_cast<std::uint64_t>(level);
      ASSERT_TRUE(store_->put(pool_, "k", as_bytes("v"), {.level = level, .request = {client, 1, group}}));
    }
  ASSERT_TRUE(store_->forget_requests([](std::uint16_t group) { return group == 2; }));
  const auto again = [&](std::uint64_t group, durability level) {
    const auto done = store_->put(pool_, "k", as_bytes("v"),
                                  {.level = level, .request = {10 * group + static_cast<std::uint64_t>(level), 1}});
    return done && done->repeated;
  };
  for (const durability level : {durability::durable, durability::volatile_}) EXPECT_TRUE(again(1, level));
  EXPECT_FALSE(again(2, durability::volatile_));
  reopen();
  EXPECT_TRUE(again(1, durability::durable));
  EXPECT_FALSE(again(2, durability::durable)) << "also in the index";
}

TEST_F(Operations, RequestsOfAGroupAreKnownToAStoreThatIsToldOfThem) {
  for (const durability level : {durability::durable, durability::volatile_})
    for (const std::uint16_t group : {std::uint16_t{1}, std::uint16_t{2}}) {
      const std::uint64_t client = 10 * group + static_cast<std::uint64_t>(level);
      ASSERT_TRUE(store_->put(pool_, "k", as_bytes("v"), {.level = level, .request = {client, 1, group}}));
    }
  ASSERT_TRUE(store_->put(pool_, "k", as_bytes("v"), {.request = {99, kDedupeWindow + 7, 1}}));
  const auto put = store_->put(pool_, "gone", as_bytes("v"));
  ASSERT_TRUE(store_->erase(pool_, "gone", {.request = {98, 5, 1}}));
  reopen();  // what is in the index alone is told, too; the volatile ones are gone
  ASSERT_TRUE(store_->put(pool_, "k", as_bytes("v"), {.level = durability::volatile_, .request = {11, 1, 1}}));
  std::vector<std::string> parts;
  const auto keep = [&](std::string part) {
    parts.push_back(std::move(part));
    return status();
  };
  ASSERT_TRUE(store_->export_requests([](std::uint16_t group) { return group == 1; }, 1, keep));
  EXPECT_EQ(parts.size(), 4u) << "one a part, which is as short as may be";

  // Another store, that knows a later request of client 99, in the same place of its window.
  ASSERT_TRUE(store_->forget_requests([](std::uint16_t) { return true; }));
  ASSERT_TRUE(store_->put(pool_, "k", as_bytes("v"), {.request = {99, 2 * kDedupeWindow + 7, 1}}));
  EXPECT_EQ(store_->erase(pool_, "gone", {.request = {98, 5, 1}}).code(), ENOENT);
  for (const auto& part : parts) {
    ASSERT_TRUE(store_->remember_requests(part, [](std::uint16_t group) { return group == 1; }));
    EXPECT_EQ(store_->remember_requests(part.substr(1), [](std::uint16_t) { return true; }).code(), EPROTO);
  }
  const auto again = store_->erase(pool_, "gone", {.request = {98, 5, 1}});
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_TRUE(again->repeated);
  EXPECT_EQ(again->version, put->version);
  EXPECT_TRUE(store_->put(pool_, "k", as_bytes("v"), {.request = {11, 1, 1}})->repeated);
  EXPECT_TRUE(store_->put(pool_, "k", as_bytes("v"), {.request = {99, 2 * kDedupeWindow + 7, 1}})->repeated);
  EXPECT_FALSE(store_->put(pool_, "k", as_bytes("v"), {.request = {23, 1, 2}})->repeated) << "of another group";
  reopen();
  EXPECT_TRUE(store_->erase(pool_, "gone", {.request = {98, 5, 1}})->repeated) << "as durable as what it did";
  EXPECT_FALSE(store_->put(pool_, "k", as_bytes("v"), {.request = {11, 1, 1}})->repeated);
}

// A store that is told what requests did at another one. This one plays both: it forgets what it did, and is told of it.
class CatchUpResults : public Operations {
 protected:
  static bool all(std::uint16_t) { return true; }
  std::string what_is_known() {
    std::string out;
    const auto keep = [&](std::string part) {
      out += part;
      return status();
    };
    EXPECT_TRUE(store_->export_requests(all, 1 << 20, keep));
    return out;
  }
  void forget() { EXPECT_TRUE(store_->forget_requests(all)); }
  void tell(const std::string& part) { EXPECT_TRUE(store_->remember_requests(part, all)); }
};

// Catch-up reports a change whose replication is still in progress.
TEST_F(CatchUpResults, AReplicatedChangeIsAppliedAfterItsCatchUpResult) {
  std::uint64_t client = 100;
  for (const durability level : {durability::durable, durability::volatile_})
    for (const bool reopened : {false, true}) {
      if (reopened && level == durability::volatile_) continue;  // gone, value and all
      const request_key put{++client, 5, 1}, erase{client, 6, 1};
      const auto old = store_->put(pool_, "k", as_bytes("old"), {.level = level});
      const auto made = store_->put(pool_, "k", as_bytes("new"), {.level = level, .request = put});
      const auto gone = store_->erase(pool_, "k", {.level = level, .request = erase});
      ASSERT_TRUE(old && made && gone);
      const std::string known = what_is_known();
      // The other store: it has the old value.
      forget();
      const copy_of as_old{old->version, 0}, as_made{made->version, 0}, as_gone{gone->version, 0};
      ASSERT_TRUE(store_->put(pool_, "k", as_bytes("old"), {.level = level, .copy = as_old}));
      tell(known);
      if (reopened) reopen();
      const auto asked = store_->put(pool_, "k", as_bytes("new"), {.level = level, .request = put});
      ASSERT_TRUE(asked);
      EXPECT_TRUE(asked->repeated) << "the client's own question";
      EXPECT_EQ(asked->version, made->version);
      EXPECT_EQ(read("k"), "old");

      const auto copied = store_->put(pool_, "k", as_bytes("new"), {.level = level, .request = put, .copy = as_made});
      ASSERT_TRUE(copied);
      EXPECT_FALSE(copied->repeated);
      EXPECT_EQ(read("k"), "new");
      const auto removed = store_->erase(pool_, "k", {.level = level, .request = erase, .copy = as_gone});
      ASSERT_TRUE(removed);
      EXPECT_FALSE(removed->repeated);
      EXPECT_EQ(read("k"), "errno 2") << "an erased value would be back";

      // From now on it was done here.
      EXPECT_TRUE(store_->erase(pool_, "k", {.level = level, .request = erase, .copy = as_gone})->repeated);
      const auto again = store_->erase(pool_, "k", {.level = level, .request = erase});
      ASSERT_TRUE(again) << again.error().message;
      EXPECT_TRUE(again->repeated);
      EXPECT_EQ(again->version, gone->version);
      forget();
    }
}

// Catch-up was faster than the replicated change: it changes nothing, and the client gets the first store's result.
TEST_F(CatchUpResults, ALateCopyKeepsTheFirstResult) {
  ASSERT_TRUE(store_->put(pool_, "k", as_bytes("old")));
  const auto gone = store_->erase(pool_, "k", {.request = {7, 5, 1}});
  ASSERT_TRUE(gone);
  const std::string known = what_is_known();
  forget();
  tell(known);
  const auto copied =
      store_->erase(pool_, "k", {.precondition = condition::none, .request = {7, 5, 1}, .copy = {gone->version, 0}});
  ASSERT_TRUE(copied) << copied.error().message;
  const auto again = store_->erase(pool_, "k", {.request = {7, 5, 1}});
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_TRUE(again->repeated);
  EXPECT_EQ(again->version, gone->version);
}

TEST_F(CatchUpResults, ACatchUpResultNeverReplacesAnAppliedOne) {
  ASSERT_TRUE(store_->put(pool_, "k", as_bytes("there"), {.request = {7, 5, 1}}));
  const std::string known = what_is_known();
  forget();
  const auto done = store_->put(pool_, "k", as_bytes("here"), {.request = {7, 5, 1}});
  ASSERT_TRUE(done);
  for (const bool reopened : {false, true}) {
    tell(known);
    if (reopened) reopen();
    const auto again = store_->put(pool_, "k", as_bytes("here"), {.request = {7, 5, 1}});
    ASSERT_TRUE(again);
    EXPECT_TRUE(again->repeated);
    EXPECT_EQ(again->version, done->version);
    const auto copied = store_->put(pool_, "k", as_bytes("copy"), {.request = {7, 5, 1}, .copy = {done->version + 1, 0}});
    ASSERT_TRUE(copied);
    EXPECT_TRUE(copied->repeated) << "a copy that comes twice";
    EXPECT_EQ(read("k"), "here");
  }
}

// The source of the catch-up result has lost the change since, and the next source does not report it.
TEST_F(CatchUpResults, CatchUpResultsAreForgottenWithTheirGroup) {
  for (const durability level : {durability::durable, durability::volatile_}) {
    const request_key request{static_cast<std::uint64_t>(level), 5, 1};
    ASSERT_TRUE(store_->put(pool_, "k", as_bytes("v"), {.level = level, .request = request}));
    const std::string known = what_is_known();
    forget();
    tell(known);
    EXPECT_EQ(what_is_known().size(), known.size());
    forget();
    EXPECT_EQ(what_is_known(), "");
    if (level == durability::durable) reopen();
    EXPECT_FALSE(store_->put(pool_, "k", as_bytes("v"), {.level = level, .request = request})->repeated);
    forget();
  }
}

// A store with two operations in one request, all or nothing, as one without.
TEST_F(CatchUpResults, ABatchHasAResultForEachItem) {
  const auto batch = [&] {
    std::vector<batch_operation> out(2);
    out[0].key = "a", out[0].value = as_bytes("1");
    out[1].key = "b", out[1].value = as_bytes("2");
    return out;
  };
  const batch_options settings{.atomic = true, .request = {7, 5, 1}};
  const auto done = store_->batch(pool_, batch(), settings);
  ASSERT_TRUE(done);
  const std::string known = what_is_known();
  forget();
  tell(known);
  const auto again = store_->batch(pool_, batch(), settings);
  ASSERT_TRUE(again);
  EXPECT_TRUE(again->repeated);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(again->items[i].version, done->items[i].version);
}

TEST_F(Operations, FailedRequestsMayBeTriedAgain) {
  const put_options settings{.precondition = condition::if_present, .request = {5, 1}};
  EXPECT_EQ(put("k", "v", settings), ENOENT);
  ASSERT_EQ(put("k", "old"), 0);
  const auto done = store_->put(pool_, "k", as_bytes("v"), settings);
  ASSERT_TRUE(done);
  EXPECT_FALSE(done->repeated);
}

// Counters that several threads raise by conditional puts lose nothing, whatever the durabilities that meet at a key.
TEST_F(Operations, ConditionalPutsAreExactUnderConcurrency) {
  constexpr int kThreads = 4;
  constexpr int kRaises = 40;
  ASSERT_EQ(put("n", "0"), 0);
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int done = 0; done < kRaises;) {
        char digits[32] = {};
        const auto now = store_->get(pool_, "n", std::as_writable_bytes(std::span(digits)));
        if (!now) {
          ++failures;
          return;
        }
        const std::string next = std::to_string(std::atoi(digits) + 1);
        const durability level = t % 2 == 0 ? durability::volatile_ : durability::logged;
        const int code =
            put("n", next, {.level = level, .precondition = condition::if_version, .expected_version = now->info.version});
        if (code == 0) ++done;
        if (code != 0 && code != ESTALE) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(read("n"), std::to_string(kThreads * kRaises));
}

TEST_F(Operations, ReadersNeverSeeAMixture) {
  constexpr std::uint64_t kVersions = 60;
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  ASSERT_TRUE(store_->put(pool_, "k", pattern_bytes(kLarge, 0)));
  std::thread reader([&] {
    bytes out(kLarge);
    version_t last = 0;
    while (!stop) {
      const auto got = store_->get(pool_, "k", out, {.verify = true});
      if (!got || got->copied_bytes != kLarge || got->info.version < last) ++wrong;
      if (got) last = got->info.version;
    }
  });
  for (std::uint64_t i = 1; i < kVersions; ++i)
    ASSERT_TRUE(store_->put(pool_, "k", pattern_bytes(kLarge, i), {.level = static_cast<durability>(1 + i % 3)}));
  stop = true;
  reader.join();
  EXPECT_EQ(wrong, 0);
}

// A random life, compared with a map after each step and after each restart.
class Model : public StoreTest, public ::testing::WithParamInterface<unsigned> {
 protected:
  engine_options options() override {
    engine_options made = StoreTest::options();
    made.arena_bytes = made.chunk_bytes = std::uint64_t{4} << 20;  // eviction all the time
    made.extent_file_bytes = std::uint64_t{1} << 20;
    made.small_value_bytes = 8192;
    return made;
  }
};

TEST_P(Model, AgreesWithAMap) {
  std::mt19937 random(GetParam());
  struct held {
    bytes value;
    bool keeps = false;  // over a restart
  };
  std::map<std::string, held> model;
  std::uint64_t contents = 0;
  for (int step = 0; step < 400; ++step) {
    const std::string key = "k" + std::to_string(random() % 40);
    const auto level = static_cast<durability>(1 + random() % 2);  // volatile or logged: no sync a step
    const auto modelled = model.find(key);
    switch (random() % 10) {
      case 0:
      case 1: {
        const int code = store_->erase(pool_, key, {.level = level}).code();
        ASSERT_EQ(code, modelled == model.end() ? ENOENT : 0);
        if (modelled != model.end()) model.erase(modelled);
        break;
      }
      case 2: {
        const auto info = store_->stat(pool_, key);
        ASSERT_EQ(info.ok(), modelled != model.end());
        if (info) { ASSERT_EQ(info->length_bytes, modelled->second.value.size()); }
        break;
      }
      case 3: {
        if (random() % 10 != 0) break;
        reopen();
        std::erase_if(model, [](const auto& entry) { return !entry.second.keeps; });
        break;
      }
      case 4:
      case 5: {
        const std::string found = read(key);
        ASSERT_TRUE(found == (modelled == model.end() ? "errno 2" : text(modelled->second.value)))
            << key << " at step " << step;
        break;
      }
      default: {
        const std::size_t size = random() % 3 == 0 ? random() % 300'000 : random() % 9000;
        const bytes value = pattern_bytes(size, ++contents);
        const auto precondition = static_cast<condition>(random() % 3);
        const int expected = precondition == condition::if_absent && modelled != model.end()    ? EEXIST
                             : precondition == condition::if_present && modelled == model.end() ? ENOENT
                                                                                                : 0;
        const auto done = store_->put(pool_, key, value, {.level = level, .precondition = precondition});
        ASSERT_EQ(done.code(), expected) << (done ? "" : done.error().message);
        if (done) model[key] = {value, level == durability::logged};
      }
    }
  }
  std::uint64_t sum = 0;
  for (const auto& [key, expected] : model) {
    ASSERT_TRUE(read(key) == text(expected.value)) << key;
    sum += expected.value.size();
  }
  EXPECT_EQ(store_->pool(pool_)->keys, model.size());
  EXPECT_EQ(store_->pool(pool_)->bytes, sum);
  const auto page = store_->find(pool_, {});
  ASSERT_TRUE(page);
  std::vector<std::string> keys;
  for (const auto& [key, expected] : model) keys.push_back(key);
  EXPECT_EQ(page->keys, keys);
  expect_sound();
}

INSTANTIATE_TEST_SUITE_P(Seeds, Model, ::testing::Range(1u, 7u));

}  // namespace
}  // namespace pl::store
