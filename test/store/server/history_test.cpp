// SPDX-License-Identifier: Apache-2.0
// The checker itself by hand-written histories, then real ones: several clients on few keys, connections that break, a
// server that is restarted. A client that sometimes answers from memory must be found out.
#include "test/store/server/history.hpp"

#include <mutex>

#include "base/clock.hpp"
#include "test/store/server/store_rig.hpp"

namespace pl::store_test {
namespace {

using kind = event::kind;

event completed(kind action, std::uint64_t value, std::uint64_t begin, std::uint64_t end, bool succeeded = true) {
  return {action, value, 0, succeeded, false, begin, end};
}
event lost(kind action, std::uint64_t value, std::uint64_t begin) { return {action, value, 0, true, true, begin, kNever}; }

TEST(history, TellsThePossibleFromTheImpossible) {
  const auto put = kind::put, get = kind::get, absent = kind::put_if_absent, erase = kind::erase;
  struct {
    const char* label;
    std::vector<event> events;
    bool possible;
  } const cases[] = {
      {"one after the other", {completed(put, 1, 1, 2), completed(get, 1, 3, 4)}, true},
      {"a read from nowhere", {completed(put, 1, 1, 2), completed(get, 2, 3, 4)}, false},
      {"a stale read", {completed(put, 1, 1, 2), completed(put, 2, 3, 4), completed(get, 1, 5, 6)}, false},
      {"at the same time, either is fine",
       {completed(put, 1, 1, 9), completed(put, 2, 1, 9), completed(get, 1, 10, 11)},
       true},
      {"but not one and then the other way round",
       {completed(put, 1, 1, 9), completed(put, 2, 1, 9), completed(get, 1, 10, 11), completed(get, 2, 12, 13),
        completed(get, 1, 14, 15)},
       false},
      {"reads that go back",
       {completed(put, 1, 1, 2), completed(put, 2, 3, 10), completed(get, 2, 4, 5), completed(get, 1, 6, 7)},
       false},
      {"no answer, and it happened", {lost(put, 1, 1), completed(get, 0, 2, 3), completed(get, 1, 4, 5)}, true},
      {"no answer, and it did not", {lost(put, 1, 1), completed(get, 0, 2, 3), completed(get, 0, 4, 5)}, true},
      {"no answer, and it happened twice",
       {lost(put, 1, 1), completed(get, 1, 2, 3), completed(put, 2, 4, 5), completed(get, 2, 6, 7), completed(get, 1, 8, 9)},
       false},
      {"two that both found it absent", {completed(absent, 1, 1, 9), completed(absent, 2, 1, 9)}, false},
      {"one that did, one that did not",
       {completed(absent, 1, 1, 9), completed(absent, 2, 1, 9, false), completed(get, 1, 10, 11)},
       true},
      {"erased twice", {completed(put, 1, 1, 2), completed(erase, 0, 3, 9), completed(erase, 0, 3, 9)}, false},
      {"erased once", {completed(put, 1, 1, 2), completed(erase, 0, 3, 9), completed(erase, 0, 3, 9, false)}, true},
  };
  for (const auto& one : cases) EXPECT_EQ(explain_if_impossible(one.events).empty(), one.possible) << one.label;
}

constexpr std::size_t kKeys = 8, kClients = 4, kOperations = 96;  // a client's; 48 a key

class players {
 public:
  explicit players(bool stale_reads) : stale_reads_(stale_reads) {
    rig_.start();
    for (std::size_t i = 0; i < kClients; ++i) {
      clients_.push_back(store_rig::open(i % 2 == 0 ? rig_.over_unix() : rig_.over_tcp()));
      const auto pool = i == 0 ? clients_[i]->create_pool("p", {}) : clients_[i]->open_pool("p");
      EXPECT_TRUE(pool);
      pool_ = *pool;
    }
  }

  // Histories by key.
  std::vector<std::vector<event>> play(std::uint64_t seed, bool disturb) {
    std::vector<std::vector<event>> out(kKeys);
    std::mutex lock;
    std::atomic<std::size_t> running{kClients};
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < kClients; ++i)
      threads.emplace_back([&, i] {
        auto mine = one_client(i, seed);
        const std::lock_guard hold(lock);
        for (std::size_t key = 0; key < kKeys; ++key) out[key].insert(out[key].end(), mine[key].begin(), mine[key].end());
        --running;
      });
    std::mt19937 random(static_cast<unsigned>(seed));
    for (unsigned turn = 0; disturb && running > 0; ++turn) {
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      clients_[random() % kClients]->break_connection();
      if (turn % 25 == 10) {
        rig_.stop();
        rig_.start();
      }
    }
    for (auto& one : threads) one.join();
    return out;
  }

 private:
  std::vector<std::vector<event>> one_client(std::size_t number, std::uint64_t seed) {
    std::vector<std::vector<event>> out(kKeys);
    std::mt19937_64 random(seed * 100 + number);
    auto& store = *clients_[number];
    std::vector<std::pair<std::uint64_t, std::uint64_t>> last(kKeys);  // value and version that this client saw
    std::vector<std::uint64_t> words(8192);
    for (std::size_t i = 0; i < kOperations; ++i) {
      // Every client has each key equally often, so that no history is longer than the checker takes.
      const std::size_t key_index = i % kKeys;
      const std::string key = "s" + std::to_string(seed) + "k" + std::to_string(key_index);
      event one;
      const auto dice = random() % 10;
      one.action = dice < 4   ? kind::get
                   : dice < 6 ? kind::put
                   : dice < 7 ? kind::put_if_absent
                   : dice < 9 ? kind::put_if_value
                              : kind::erase;
      if (one.action == kind::put_if_value && last[key_index].first == 0) one.action = kind::get;
      if (one.action != kind::get && one.action != kind::erase) one.value = (number + 1) * 1'000'000 + seed * 1000 + i;
      const std::size_t count =
          random() % 3 == 0 ? 4000 + random() % 4000 : 1 + random() % 50;  // inline, and through the arena
      store_client::put_request options;
      if (one.action == kind::put_if_absent) options.only = {store_protocol::condition::if_absent, 0};
      if (one.action == kind::put_if_value) {
        options.only = {store_protocol::condition::if_version, last[key_index].second};
        one.expected = last[key_index].first;
      }
      const auto at_words = reinterpret_cast<std::uint64_t>(words.data());
      one.begin_ns = monotonic_ns();
      store_client::reply got;
      if (one.action == kind::get) {
        got = store.run(store.make_get(pool_, key, {at_words, words.size() * 8, std::nullopt}, {}));
      } else if (one.action == kind::erase) {
        got = store.run(store.make_erase(pool_, key, options));
      } else {
        std::fill_n(words.begin(), count, one.value);
        got = store.run(store.make_put(pool_, key, {at_words, count * 8, std::nullopt}, options));
      }
      one.end_ns = monotonic_ns();
      if (one.action == kind::get && got.status == 0) {
        one.value = words[0];
        for (std::size_t word = 0; word < got.moved_bytes / 8; ++word)
          if (words[word] != one.value) ADD_FAILURE() << "half of one value and half of another";
        if (stale_reads_ && random() % 4 == 0 && last[key_index].first != 0) one.value = last[key_index].first;  // the lie
        last[key_index] = {one.value, got.result.version};
      } else if (got.status == ENOENT || got.status == EEXIST || got.status == ESTALE) {
        one.succeeded = one.action == kind::get;
      } else if (got.status != 0) {
        one.unknown = true;
      }
      out[key_index].push_back(one);
    }
    return out;
  }

  bool stale_reads_;
  store_rig rig_;
  std::vector<std::unique_ptr<store_client::client>> clients_;
  std::uint32_t pool_ = 0;
};

TEST(store_history, IsLinearizableWithLostConnectionsAndRestarts) {
  players all(false);
  std::size_t answered = 0;
  for (std::uint64_t seed = 1; seed <= 3; ++seed)
    for (const auto& events : all.play(seed, true)) {
      EXPECT_EQ(explain_if_impossible(events), "") << "seed " << seed;
      for (const auto& one : events) answered += one.unknown ? 0 : 1;
    }
  EXPECT_GT(answered, 3 * kClients * kOperations * 9 / 10) << "operations must get through, or nothing was tried";
}

TEST(store_history, AStaleClientCacheIsDetected) {
  players all(true);
  std::size_t impossible = 0;
  for (const auto& events : all.play(9, false)) impossible += explain_if_impossible(events).empty() ? 0 : 1;
  EXPECT_GT(impossible, 0u);
}

}  // namespace
}  // namespace pl::store_test
