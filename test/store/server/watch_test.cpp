// SPDX-License-Identifier: Apache-2.0
// Watches through the whole stack: what is told and in which order, overruns, rights, limits, restarts, hostile clients.
#include "store/protocol/watch.hpp"

#include <atomic>
#include <map>
#include <thread>

#include "store/client/watcher.hpp"
#include "test/store/server/raw_peer.hpp"
#include "test/store/server/store_rig.hpp"

namespace pl::store_test {
namespace {

using store_client::batch_entry;
using store_client::watcher;
using store_protocol::durability;
using store_protocol::event_kind;
using store_protocol::opcode;
using store_protocol::watch_event;

std::string metrics_of(store_client::client& connection) {
  return connection.run(connection.make_plain(opcode::stats, 0, {})).body;
}

class Watches : public testing::Test {
 protected:
  void begin(std::unique_ptr<store_client::client>& connection) {
    rig_.start();
    connection = store_rig::open(rig_.over_unix());
    ASSERT_NE(connection, nullptr);
    pool_ = make_pool(*connection, "pool");
  }
  void SetUp() override { begin(store_); }
  std::unique_ptr<watcher> watch(store_client::client& connection, const std::string& prefix, bool exact = false) {
    const auto pool = connection.open_pool("pool");
    EXPECT_TRUE(pool);
    auto made = watcher::open(connection, {*pool, prefix, exact});
    EXPECT_TRUE(made) << made.error().message;
    return made ? *std::move(made) : nullptr;
  }
  // Until `count` events are there, or nothing comes for a while.
  static std::vector<watch_event> take(watcher& source, std::size_t count, int seconds = 10) {
    std::vector<watch_event> out;
    while (out.size() < count) {
      const auto some = source.next(store_client::clock::now() + std::chrono::seconds(seconds));
      EXPECT_TRUE(some) << some.error().message;
      if (!some || some->empty()) break;
      out.insert(out.end(), some->begin(), some->end());
    }
    return out;
  }
  static bool is_silent(watcher& source) {
    const auto some = source.next(store_client::clock::now() + std::chrono::milliseconds(100));
    return some && some->empty();
  }
  std::uint64_t put_at(const std::string& key, std::size_t bytes, durability level = durability::volatile_) {
    const auto got = put(*store_, pool_, key, random_value(bytes, 1), at_level(level));
    EXPECT_EQ(got.status, 0) << got.text;
    return got.result.version;
  }
  int erase(const std::string& key) { return store_->run(store_->make_erase(pool_, key, {})).status; }
  store_rig rig_;
  std::unique_ptr<store_client::client> store_;
  std::uint32_t pool_ = 0;
};

class busy_watches : public Watches {
 protected:
  busy_watches() { rig_.config.max_requests = 1; }
};

// A connection that the server does not read, for it has as many requests under way as it may, is kept all the same.
TEST_F(busy_watches, AConnectionThatIsNotReadStays) {
  raw_peer peer(rig_.over_unix(), pool_, "pool");
  store_protocol::head header;
  header.op = opcode::watch;
  header.request_id = 1;
  header.pool_id = pool_;
  peer.ask(header, "");
  ASSERT_EQ(peer.answer()->status, 0);
  header.op = opcode::watch_next;
  header.request_id = 2;
  header.offset = 60'000;  // ms
  store_protocol::tail fields;
  fields.token = peer.token();
  peer.ask(header, "", fields);
  EXPECT_FALSE(peer.is_cut_off(1200));
  const auto version = put_at("key", 10);
  const auto received = peer.answer();
  ASSERT_TRUE(received) << "the server has dropped the connection";
  EXPECT_EQ(received->status, 0);
  const auto events = store_protocol::decode_events(peer.body());
  ASSERT_TRUE(events && events->size() == 1);
  EXPECT_EQ(events->front(), (watch_event{event_kind::put, "key", version, 10}));
}

TEST_F(Watches, EveryChangeInOrder) {
  put_at("a/before", 1);
  const auto all = watch(*store_, ""), some = watch(*store_, "a/"), one = watch(*store_, "a/1", true);
  const auto other_pool = make_pool(*store_, "other");
  std::vector<watch_event> wanted;
  for (const durability level : {durability::volatile_, durability::logged, durability::durable}) {
    wanted.push_back({event_kind::put, "a/1", put_at("a/1", 10, level), 10});
    wanted.push_back({event_kind::put, "a/1", put_at("a/1", 70'000, level), 70'000});  // by shared memory
    wanted.push_back({event_kind::put, "a/2", put_at("a/2", 0, level), 0});
    wanted.push_back({event_kind::put, "b", put_at("b", 5, level), 5});
    ASSERT_EQ(erase("a/1"), 0);
    wanted.push_back({event_kind::erased, "a/1", wanted[wanted.size() - 3].version, 0});
  }
  EXPECT_EQ(put(*store_, other_pool, "a/1", random_value(3, 1)).status, 0);
  EXPECT_EQ(erase("nothing"), ENOENT);
  EXPECT_EQ(take(*all, wanted.size()), wanted);
  std::vector<watch_event> of_one, below;
  for (const watch_event& each : wanted) {
    if (each.key == "a/1") of_one.push_back(each);
    if (each.key != "b") below.push_back(each);
  }
  EXPECT_EQ(take(*some, below.size()), below);
  EXPECT_EQ(take(*one, of_one.size()), of_one);
  for (const auto* each : {all.get(), some.get(), one.get()}) EXPECT_TRUE(is_silent(const_cast<watcher&>(*each)));
}

TEST_F(Watches, BatchesConditionsAndPrefixes) {
  const auto all = watch(*store_, "");
  std::vector<std::string> keys;
  std::vector<batch_entry> entries;
  for (int i = 0; i < 300; ++i) keys.push_back("k" + std::to_string(i));
  const bytes_t value = random_value(100, 1);
  for (const auto& key : keys) entries.push_back({key, memory_of(value), {}, {}, 0, 0, nullptr});
  for (const auto& each : store_->run_batch(opcode::batch_put, pool_, entries)) ASSERT_EQ(each.status, 0);
  EXPECT_EQ(take(*all, 300).size(), 300u);
  // All or nothing: nothing is told of what did not happen.
  entries[7].only = {store_protocol::condition::if_absent, 0};
  EXPECT_EQ(store_->run_batch(opcode::batch_put, pool_, entries, {true, -1})[7].status, EEXIST);
  EXPECT_TRUE(is_silent(*all));
  entries[7].only.reset();
  for (const auto& each : store_->run_batch(opcode::batch_put, pool_, entries, {true, -1})) ASSERT_EQ(each.status, 0);
  EXPECT_EQ(take(*all, 300).size(), 300u);
  EXPECT_EQ(store_->erase_prefix(pool_, "k1").result.value_bytes, 111u);
  const auto gone = take(*all, 111);
  ASSERT_EQ(gone.size(), 111u);
  for (const auto& each : gone) EXPECT_EQ(each.kind, event_kind::erased);
}

TEST_F(Watches, CachesTellWhatLeaves) {
  store_protocol::cache_settings terms;
  terms.memory_bytes = 4u << 20;
  const auto cache = store_->create_pool("cache", {}, terms);
  ASSERT_TRUE(cache);
  auto all = watcher::open(*store_, {*cache, "", false});
  ASSERT_TRUE(all);
  for (int i = 0; i < 8; ++i) ASSERT_EQ(put(*store_, *cache, "v" + std::to_string(i), random_value(1u << 20, 1)).status, 0);
  store_client::put_request brief;
  brief.ttl_ms = 20;
  ASSERT_EQ(put(*store_, *cache, "brief", random_value(100, 1), brief).status, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_EQ(store_->run(store_->make_plain(opcode::stat, *cache, "brief")).status, ENOENT);
  // It is told of when its room is taken back: when the pool is next used.
  ASSERT_EQ(put(*store_, *cache, "next", random_value(100, 1)).status, 0);
  std::map<event_kind, int> seen;
  for (const auto& each : take(**all, 100, 1)) ++seen[each.kind];
  EXPECT_EQ(seen[event_kind::put], 10);
  EXPECT_GE(seen[event_kind::evicted], 4);
  EXPECT_EQ(seen[event_kind::expired], 1);
}

// Several writers of the same keys: of each key the versions only grow, and the last event is the last state.
TEST_F(Watches, EventsOfRacingWritersAreInOrderOfVersions) {
  const auto all = watch(*store_, "");
  constexpr int kWriters = 3, kRounds = 150, kKeys = 5;
  std::vector<std::thread> writers;
  std::atomic<int> changes{0};
  for (int w = 0; w < kWriters; ++w)
    writers.emplace_back([&, w] {
      const auto mine = store_rig::open(rig_.over_unix());
      const auto pool = *mine->open_pool("pool");
      for (int i = 0; i < kRounds; ++i) {
        const std::string key = std::to_string((i + w) % kKeys);
        const auto level = i % 3 == 0 ? durability::logged : durability::volatile_;
        if (i % 7 == 6) changes += mine->run(mine->make_erase(pool, key, {})).status == 0 ? 1 : 0;
        else changes += put(*mine, pool, key, random_value(64, 1), at_level(level)).status == 0 ? 1 : 0;
      }
    });
  for (auto& each : writers) each.join();
  std::map<std::string, watch_event> last;
  for (const auto& each : take(*all, static_cast<std::size_t>(changes.load()))) {
    auto& before = last[each.key];
    if (each.kind == event_kind::put) {
      EXPECT_GT(each.version, before.version);
    } else {
      EXPECT_EQ(each.version, before.version);
      EXPECT_EQ(before.kind, event_kind::put);
    }
    before = each;
  }
  EXPECT_TRUE(is_silent(*all));
  for (const auto& [key, event] : last) {
    const auto now = store_->run(store_->make_plain(opcode::stat, pool_, key));
    EXPECT_EQ(now.status, event.kind == event_kind::put ? 0 : ENOENT);
    if (now.status == 0) { EXPECT_EQ(now.result.version, event.version); }
  }
}

TEST_F(Watches, TheDeletionOfThePoolEndsThem) {
  const auto all = watch(*store_, "");
  put_at("k", 1);
  std::thread deletes([this] {
    const auto other = store_rig::open(rig_.over_unix());
    EXPECT_EQ(other->run(other->make_plain(opcode::pool_delete, 0, "pool")).status, 0);
  });
  EXPECT_EQ(take(*all, 1).size(), 1u);
  deletes.join();
  const auto none = all->next(store_client::clock::now() + std::chrono::seconds(10));
  EXPECT_EQ(none.code(), ENXIO);
}

// A connection keeps the numbers of pools that others have deleted.
TEST_F(Watches, APoolThatIsGoneIsNotWatched) {
  const auto other = store_rig::open(rig_.over_unix());
  ASSERT_TRUE(other->open_pool("pool"));
  ASSERT_EQ(store_->run(store_->make_plain(opcode::pool_delete, 0, "pool")).status, 0);
  EXPECT_EQ(watcher::open(*other, {pool_, "", false}).code(), ENXIO);
  EXPECT_NE(metrics_of(*other).find("peerlane_store_watches 0\n"), std::string::npos);
}

TEST_F(Watches, AnOtherThreadStopsOne) {
  const auto all = watch(*store_, "");
  std::thread stops([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    all->stop();
  });
  EXPECT_EQ(all->next(store_client::clock::time_point::max()).code(), ECANCELED);
  stops.join();
}

// A watcher that was cut off, or whose server was another one, is told that it missed something, once.
TEST_F(Watches, ARestartIsTold) {
  const auto all = watch(*store_, "");
  put_at("k", 1, durability::durable);
  EXPECT_EQ(take(*all, 1).size(), 1u);
  rig_.stop();
  EXPECT_TRUE(is_silent(*all));
  rig_.start();
  const auto lost = take(*all, 1);
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].kind, event_kind::lost);
  EXPECT_EQ(lost[0].value_bytes, 0u);
  const auto version = put_at("k", 2, durability::durable);
  const auto next = take(*all, 1);
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0], (watch_event{event_kind::put, "k", version, 2}));
}

TEST_F(Watches, AStopDoesNotWaitForThem) {
  const auto all = watch(*store_, "");
  std::thread waits([&] { (void)all->next(store_client::clock::now() + std::chrono::seconds(60)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const auto begin = std::chrono::steady_clock::now();
  rig_.stop();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(1500)) << "it drained for its whole time";
  all->stop();
  waits.join();
}

class LimitedWatches : public Watches {
 protected:
  void SetUp() override {
    rig_.config.max_principal_watches = 4;
    rig_.config.max_principal_watch_bytes = 8192;
    rig_.config.admins = {"uid:" + std::to_string(geteuid())};
    Watches::SetUp();
  }
};

TEST_F(LimitedWatches, AnOverrunIsTold) {
  const auto all = watch(*store_, "");
  for (int i = 0; i < 1000; ++i) put_at("key" + std::to_string(i), 1);
  const auto version = put_at("last", 7);
  std::uint64_t received = 0, lost = 0;
  std::vector<watch_event> events;
  while (received + lost < 1001) {
    const auto some = take(*all, 1);
    ASSERT_FALSE(some.empty()) << received << " received, " << lost << " lost";
    for (const auto& each : some) each.kind == event_kind::lost ? lost += each.value_bytes : ++received;
    events.insert(events.end(), some.begin(), some.end());
  }
  EXPECT_EQ(received + lost, 1001u);
  EXPECT_GT(lost, 500u);
  EXPECT_EQ(events.back(), (watch_event{event_kind::put, "last", version, 7}));
}

TEST_F(LimitedWatches, AsManyAsThePrincipalMayHave) {
  std::vector<std::unique_ptr<watcher>> mine;
  for (int i = 0; i < 4; ++i) mine.push_back(watch(*store_, std::to_string(i)));
  const auto second = store_rig::open(rig_.over_unix());  // of the same principal
  EXPECT_EQ(watcher::open(*second, {*second->open_pool("pool"), "", false}).code(), EMFILE);
  const auto other = store_rig::open(rig_.over_tcp());  // of another one
  const auto theirs = watch(*other, "");
  ASSERT_NE(theirs, nullptr);
  mine.pop_back();
  EXPECT_NE(watch(*second, ""), nullptr);
}

TEST_F(LimitedWatches, RightsAreThoseOfThePool) {
  const auto tcp = store_rig::open(rig_.over_tcp());
  const auto all = watch(*tcp, "");
  store_protocol::pool_settings settings;
  settings.access = "tcp=w";
  const auto set = store_->make_plain(opcode::pool_set, 0, "pool");
  set->fields.settings = settings;
  ASSERT_EQ(store_->run(set).status, 0);
  put_at("secret", 1);
  EXPECT_EQ(all->next(store_client::clock::now() + std::chrono::seconds(10)).code(), EACCES);
  EXPECT_EQ(watcher::open(*tcp, {*tcp->open_pool("pool"), "", false}).code(), EACCES);
}

// A watcher that takes nothing fills no more than a share of what its principal's watches hold together.
TEST_F(LimitedWatches, ASlowOneCostsTheOthersNothing) {
  const auto slow = watch(*store_, "slow"), quick = watch(*store_, "quick");
  for (int i = 0; i < 2; ++i) put_at("slow" + std::string(3990, 'k'), 1);  // of 8192 bytes 116 are left
  const std::string key = "quick" + std::string(300, 'q');
  for (int i = 0; i < 5; ++i) {
    put_at(key, 1);
    const auto some = take(*quick, 1);
    ASSERT_EQ(some.size(), 1u);
    EXPECT_EQ(some[0].kind, event_kind::put);
  }
}

// ---- Clients that do not keep to the rules

store_protocol::head watch_request(opcode op, std::uint64_t id, std::uint32_t pool, std::uint64_t wait_ms = 0) {
  store_protocol::head out;
  out.op = op;
  out.request_id = id;
  out.pool_id = pool;
  out.offset = wait_ms;
  return out;
}

store_protocol::tail with_token(std::uint64_t token) {
  store_protocol::tail out;
  out.token = token;
  return out;
}

TEST_F(LimitedWatches, TokensAreOfOneConnection) {
  const auto mine = watch(*store_, "");
  raw_peer peer(rig_.over_unix(), 1, "pool");
  // Whatever it names, it is not the other connection's: these are numbers that nobody can guess, and they would not help.
  for (std::uint64_t token = 0; token < 64; ++token) {
    peer.ask(watch_request(opcode::watch_next, token + 1, 1), {}, with_token(token));
    const auto got = peer.answer();
    ASSERT_TRUE(got);
    EXPECT_EQ(got->status, EBADF);
  }
  peer.ask(watch_request(opcode::watch_next, 100, 1), {});
  EXPECT_EQ(peer.answer()->status, EBADF);
  peer.ask(watch_request(opcode::watch, 101, 999), {});
  EXPECT_EQ(peer.answer()->status, ENXIO);
  auto exact = watch_request(opcode::watch, 102, 1);
  exact.flags = store_protocol::flag::exact;
  peer.ask(exact, {});
  EXPECT_EQ(peer.answer()->status, EINVAL);
}

TEST_F(LimitedWatches, WhoeverTakesNothingHoldsLittle) {
  {
    raw_peer peer(rig_.over_unix(), 1, "pool");
    for (std::uint64_t id = 1; id <= 4; ++id) peer.ask(watch_request(opcode::watch, id, 1), {});
    for (int i = 0; i < 4; ++i) EXPECT_EQ(peer.answer()->status, 0);
    peer.ask(watch_request(opcode::watch, 5, 1), {});
    EXPECT_EQ(peer.answer()->status, EMFILE);
    EXPECT_NE(peer.text().find("max_principal_watches"), std::string::npos) << peer.text();
    const std::string long_key(4000, 'k');
    for (int i = 0; i < 2000; ++i) put_at(long_key + std::to_string(i % 10), 1);
    EXPECT_NE(metrics_of(*store_).find("peerlane_store_watches 4\n"), std::string::npos);
    EXPECT_EQ(metrics_of(*store_).find("peerlane_store_watch_lost_total 0\n"), std::string::npos);
  }  // it leaves without a word
  EXPECT_TRUE(soon([&] { return metrics_of(*store_).find("peerlane_store_watches 0\n") != std::string::npos; }));
}

TEST_F(Watches, AskedTwiceAtOnce) {
  const auto begun = store_->make_plain(opcode::watch, pool_, "k");
  ASSERT_EQ(store_->run(begun).status, 0);
  const auto token = begun->got.fields->token.value_or(0);
  const auto ask = [&](std::uint64_t wait_ms) {
    const auto one = store_->make_plain(opcode::watch_next, pool_, {});
    one->fields.token = token;
    one->head.offset = wait_ms;
    store_->start(one);
    return one;
  };
  const auto first = ask(UINT64_MAX), second = ask(0);
  ASSERT_TRUE(store_->wait(second, store_client::clock::now() + std::chrono::seconds(10)));
  EXPECT_EQ(second->got.status, EBUSY);
  put_at("k", 3);
  ASSERT_TRUE(store_->wait(first, store_client::clock::now() + std::chrono::seconds(10)));
  EXPECT_EQ(store_protocol::decode_events(first->got.body)->size(), 1u);
  const auto third = ask(10);
  ASSERT_TRUE(store_->wait(third, store_client::clock::now() + std::chrono::seconds(10)));
  EXPECT_EQ(third->got.status, 0);
  EXPECT_TRUE(third->got.body.empty());
  // At most so many at a time; the rest says that there is more.
  for (int i = 0; i < 5; ++i) put_at("k" + std::to_string(i), 1);
  const auto few = store_->make_plain(opcode::watch_next, pool_, {});
  few->fields.token = token;
  few->head.value_bytes = 2;
  few->head.offset = 1000;
  store_->start(few);
  ASSERT_TRUE(store_->wait(few, store_client::clock::now() + std::chrono::seconds(10)));
  EXPECT_EQ(store_protocol::decode_events(few->got.body)->size(), 2u);
  EXPECT_TRUE(few->got.more);
}

// One that asks again and again, and takes no answers: it is not answered without end, and the others' puts go on.
TEST_F(Watches, AnswersThatNobodyTakes) {
  raw_peer peer(rig_.over_tcp(), 1, "pool");
  peer.ask(watch_request(opcode::watch, 1, 1), {});
  ASSERT_EQ(peer.answer()->status, 0);
  const auto token = peer.token();
  const std::size_t before = resident_bytes();
  for (std::uint64_t i = 0; i < 3000; ++i) {
    put_at(std::string(3000, 'x') + std::to_string(i), 1);
    peer.ask(watch_request(opcode::watch_next, 2 + i, 1, 60'000), {}, with_token(token));
  }
  EXPECT_LT(resident_bytes(), before + (std::size_t{256} << 20));
  peer.leave();
  EXPECT_TRUE(soon([&] { return metrics_of(*store_).find("peerlane_store_watches 0\n") != std::string::npos; }));
}

TEST(WatchEvents, DamagedListsAreRefused) {
  std::string body;
  const watch_event one{event_kind::put, "key", 7, 12};
  store_protocol::append(body, one);
  EXPECT_EQ(body.size(), store_protocol::kWatchEventBytes + 3);
  EXPECT_EQ(store_protocol::decode_events(body)->front(), one);
  for (std::size_t bytes = 1; bytes < body.size(); ++bytes)
    EXPECT_EQ(store_protocol::decode_events(body.substr(0, bytes)).code(), EPROTO) << bytes;
  for (const int kind : {0, 5, 15, 17, 255}) {
    std::string other = body;
    other[0] = static_cast<char>(kind);
    EXPECT_EQ(store_protocol::decode_events(other).code(), EPROTO) << kind;
  }
}

}  // namespace
}  // namespace pl::store_test
