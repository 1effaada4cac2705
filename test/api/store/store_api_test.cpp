// SPDX-License-Identifier: Apache-2.0
// The store's public interface as programs load it (libpeerlane_store), against a server in this process and the simulated
// GPU.
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <peerlane/copy.hpp>
#include <peerlane/store.hpp>
#include <thread>

#include "test/store/server/store_rig.hpp"
#include "test/support/sim_fixture.hpp"

namespace pl::store_test {
namespace {

class store_api : public testing::Test {
 protected:
  void SetUp() override {
    test::simulated_cuda();  // the library finds it as any program's
    rig_.start();
    auto opened = peerlane::store::open_at(rig_.config.data + "/store.sock");
    ASSERT_TRUE(opened) << opened.error().message;
    store_ = std::make_unique<peerlane::store>(*std::move(opened));
    auto pool = store_->create_pool("p");
    ASSERT_TRUE(pool) << pool.error().message;
    pool_ = *pool;
  }
  store_rig rig_;
  std::unique_ptr<peerlane::store> store_;
  peerlane_pool_t pool_ = 0;
};

TEST_F(store_api, HostAndDeviceMemoryAlike) {
  const test::current_device current(0);
  const std::size_t bytes = 300'000;
  const test::device_buffer device(bytes);
  const auto value = random_value(bytes, 1);
  auto put = store_->put(pool_, "k", value);
  ASSERT_TRUE(put) << put.error().message;
  EXPECT_EQ(put->path, static_cast<unsigned>(PEERLANE_PATH_SHM_DIRECT));
  EXPECT_EQ(put->durability, static_cast<unsigned>(PEERLANE_DURABLE));
  auto got = store_->get(pool_, "k", peerlane::device_buffer(device.pointer(), bytes));
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_EQ(got->moved_bytes, bytes);
  EXPECT_EQ(got->crc32c, put->crc32c);
  EXPECT_EQ(test::device_bytes(device.pointer(), bytes), value);

  // Registered memory, and a part of it.
  auto memory = store_->register_memory(peerlane::any_buffer(reinterpret_cast<void*>(device.pointer()), bytes));
  ASSERT_TRUE(memory) << memory.error().message;
  auto options = peerlane::store::put_options();
  options.durability = PEERLANE_VOLATILE;
  auto part = store_->put_registered(pool_, "part", *memory, 1000, 50'000, &options);
  ASSERT_TRUE(part) << part.error().message;
  EXPECT_EQ(part->durability, static_cast<unsigned>(PEERLANE_VOLATILE));
  bytes_t room(60'000);
  got = store_->get(pool_, "part", room);
  ASSERT_TRUE(got);
  room.resize(got->moved_bytes);
  EXPECT_EQ(room, bytes_t(value.begin() + 1000, value.begin() + 51'000));
  EXPECT_EQ(store_->put_registered(pool_, "part", *memory, bytes - 10, 11).code(), EINVAL);
  EXPECT_EQ(peerlane_store_close(store_->get()), EBUSY);  // memory is registered
}

TEST_F(store_api, ManyKeysAtOnce) {
  const test::current_device current(0);
  std::vector<std::string> names;
  std::vector<bytes_t> values, rooms;
  for (std::size_t i = 0; i < 300; ++i) {
    names.push_back("many/" + std::to_string(1000 + i));
    values.push_back(random_value(i == 7 ? 200'000 : 1 + i * 31 % 5000, i));
    rooms.emplace_back(values.back().size());
  }
  const std::vector<std::string_view> keys(names.begin(), names.end());
  const std::vector<peerlane::const_buffer> sources(values.begin(), values.end());
  const auto put = store_->multi_put(pool_, keys, sources);
  ASSERT_TRUE(put) << put.error().message;
  for (const auto& one : *put) EXPECT_EQ(one.error, 0);
  std::vector<peerlane::buffer> places(rooms.begin(), rooms.end());
  const test::device_buffer device(values[9].size());
  places[9] = peerlane::device_buffer(device.pointer(), values[9].size());  // a GPU's memory goes by itself
  const auto got = store_->multi_get(pool_, keys, places);
  ASSERT_TRUE(got) << got.error().message;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ((*got)[i].error, 0) << i;
    EXPECT_EQ((*got)[i].version, (*put)[i].version) << i;
    EXPECT_TRUE((i == 9 ? test::device_bytes(device.pointer(), values[9].size()) : rooms[i]) == values[i]) << i;
  }
  const std::array<std::string_view, 2> two{"many/1000", "none"};
  const auto known = store_->multi_exists(pool_, two);
  ASSERT_TRUE(known) << known.error().message;
  EXPECT_EQ((*known)[0].error, 0);
  EXPECT_EQ((*known)[0].size_bytes, values[0].size());
  EXPECT_EQ((*known)[1].error, ENOENT);
  // All or nothing.
  const auto atomic = store_->multi_erase(pool_, two, nullptr, true);
  ASSERT_TRUE(atomic) << atomic.error().message;
  EXPECT_EQ((*atomic)[0].error, ECANCELED);
  EXPECT_EQ((*atomic)[1].error, ENOENT);
  // Pages, with a cursor.
  std::string after;
  std::vector<std::string> found;
  for (;;) {
    const auto page = store_->scan(pool_, "many/", after, 70);
    ASSERT_TRUE(page) << page.error().message;
    for (const auto& one : *page) found.push_back(one.key);
    if (page->size() < 70) break;
    after = found.back();
  }
  EXPECT_EQ(found, names);
  const auto erased = store_->erase_prefix(pool_, "many/11");
  ASSERT_TRUE(erased) << erased.error().message;
  EXPECT_EQ(*erased, 100u);
  EXPECT_EQ(store_->multi_put(pool_, two, {}).code(), EINVAL);
  std::array<peerlane_store_item, 2> mixed{peerlane::store::item_for(PEERLANE_STORE_GET, pool_, "a", rooms[0]),
                                           peerlane::store::item_for(PEERLANE_STORE_PUT, pool_, "b", rooms[1])};
  const auto refused = store_->batch(mixed);
  EXPECT_EQ(refused.code(), EINVAL);
  EXPECT_NE(refused.error().message.find("item 1"), std::string::npos) << refused.error().message;
}

TEST_F(store_api, ChangesOfKeysAreTold) {
  auto all = store_->watch(pool_);
  ASSERT_TRUE(all) << all.error().message;
  auto one = store_->watch_key(pool_, "b");
  ASSERT_TRUE(one);
  const bytes_t value(5, 7);
  const auto a = store_->put(pool_, "a", value), b = store_->put(pool_, "b", value);
  ASSERT_TRUE(a && b && store_->erase(pool_, "a"));
  std::vector<peerlane::store_watch::event> events;
  while (events.size() < 3) {
    const auto some = all->next(10'000);
    ASSERT_TRUE(some) << some.error().message;
    events.insert(events.end(), some->begin(), some->end());
  }
  EXPECT_EQ(events[0].change, PEERLANE_CHANGE_PUT);
  EXPECT_EQ(events[0].key, "a");
  EXPECT_EQ(events[0].version, a->version);
  EXPECT_EQ(events[0].value_size_bytes, 5u);
  EXPECT_EQ(events[2].change, PEERLANE_CHANGE_ERASED);
  EXPECT_EQ(events[2].version, a->version);
  EXPECT_EQ(one->next(10'000)->at(0).version, b->version);
  EXPECT_EQ(one->next(20).code(), ETIMEDOUT);
  EXPECT_EQ(peerlane_store_close(store_->get()), EBUSY);  // a watch is open
  EXPECT_NE(std::string(peerlane_store_last_error()).find("watch"), std::string::npos);
  // The object keeps what is still open.
  EXPECT_EQ(store_->close().code(), EBUSY);
  EXPECT_TRUE(store_->put(pool_, "c", value)) << "the store is open";
  ASSERT_TRUE(one->close() && all->close());
  EXPECT_TRUE(store_->close());
  EXPECT_EQ(store_->get(), nullptr);
}

// A function that stops in the middle leaves the others to the next call; it may not close the watch that it is called for.
TEST_F(store_api, WatchesThatAreNotUsedAsTheyShould) {
  peerlane_store_watch_t watch = nullptr;
  ASSERT_EQ(peerlane_store_watch_open(store_->get(), pool_, nullptr, &watch), 0);
  const bytes_t value(1);
  for (const char* key : {"a", "b", "c"}) ASSERT_TRUE(store_->put(pool_, key, value));
  struct state {
    peerlane_store_watch_t watch;
    std::string keys;
  } now{watch, {}};
  const auto stop_at_b = [](void* context, const peerlane_watch_event* event) {
    auto& mine = *static_cast<state*>(context);
    EXPECT_EQ(peerlane_store_watch_close(mine.watch), EBUSY);
    EXPECT_EQ(peerlane_store_watch_next(mine.watch, 0, nullptr, nullptr), EINVAL);
    mine.keys.append(static_cast<const char*>(event->key), event->key_size_bytes);
    return mine.keys.back() == 'b' ? 77 : 0;
  };
  while (now.keys.size() < 2) {
    const int code = peerlane_store_watch_next(watch, 10'000, stop_at_b, &now);
    ASSERT_TRUE(code == 0 || code == 77) << code;
  }
  while (now.keys.size() < 3) ASSERT_EQ(peerlane_store_watch_next(watch, 10'000, stop_at_b, &now), 0);
  EXPECT_EQ(now.keys, "abc");
  // Two threads: the second one is told; a close ends the wait of the first.
  std::atomic<int> first{-1};
  std::thread waits([&] {
    int code = EBUSY;
    while (code == EBUSY) code = peerlane_store_watch_next(watch, -1, stop_at_b, &now);
    first = code;
  });
  int second = ETIMEDOUT;
  while (second == ETIMEDOUT) second = peerlane_store_watch_next(watch, 0, stop_at_b, &now);
  EXPECT_EQ(second, EBUSY);
  EXPECT_EQ(peerlane_store_watch_close(watch), 0);
  waits.join();
  EXPECT_EQ(first, ECANCELED);
  EXPECT_EQ(peerlane_store_watch_close(watch), EINVAL);
  EXPECT_EQ(peerlane_store_watch_next(watch, 0, stop_at_b, &now), EINVAL);
  EXPECT_EQ(peerlane_store_watch_open(store_->get(), pool_, nullptr, nullptr), EINVAL);
  EXPECT_EQ(peerlane_store_watch_open(store_->get(), 4711, nullptr, &watch), ENXIO);
  peerlane_watch_options options{};
  options.struct_bytes = sizeof options;
  options.is_key = 1;
  EXPECT_EQ(peerlane_store_watch_open(store_->get(), pool_, &options, &watch), EINVAL);  // no key
  options.prefix_size_bytes = 1;
  EXPECT_EQ(peerlane_store_watch_open(store_->get(), pool_, &options, &watch), EINVAL);
  const std::string long_key(4097, 'k');
  options.prefix = long_key.data(), options.prefix_size_bytes = long_key.size();
  EXPECT_EQ(peerlane_store_watch_open(store_->get(), pool_, &options, &watch), EINVAL);
}

TEST_F(store_api, ACacheForgetsByItself) {
  peerlane_pool_options options{};
  options.struct_bytes = sizeof options;
  options.is_cache = 1, options.cache_memory_bytes = 1u << 20, options.cache_eviction = PEERLANE_EVICT_LRU;
  const auto cache = store_->create_pool("cache", &options);
  ASSERT_TRUE(cache) << cache.error().message;
  const auto value = random_value(100'000, 1);
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(store_->put(*cache, std::to_string(i), value));
  EXPECT_EQ(store_->stat(*cache, "0").code(), ENOENT);
  EXPECT_TRUE(store_->stat(*cache, "29"));
  auto shortly = peerlane::store::put_options();
  shortly.ttl_ms = 1;
  ASSERT_TRUE(store_->put(*cache, "short", value, &shortly));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (store_->stat(*cache, "short") && std::chrono::steady_clock::now() < deadline) {}
  EXPECT_EQ(store_->stat(*cache, "short").code(), ENOENT);
  EXPECT_EQ(store_->put(pool_, "k", value, &shortly).code(), EINVAL);
  options.is_cache = 0;
  EXPECT_EQ(store_->create_pool("none", &options).code(), EINVAL);
}

// A child that used its parent's connection would take the parent's answers.
TEST_F(store_api, AForkedChildIsRefusedAndItsParentGoesOn) {
  const auto value = random_value(20'000, 3);
  ASSERT_TRUE(store_->put(pool_, "k", value));
  auto later = store_->begin_put(pool_, "later", value);
  ASSERT_TRUE(later) << later.error().message;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    bytes_t out(20'000);
    const bool is_refused = store_->get(pool_, "k", out).code() == EACCES && store_->put(pool_, "k", out).code() == EACCES &&
                            store_->open_pool("p").code() == EACCES && later->wait().code() == EACCES &&
                            later->cancel().code() == EACCES && peerlane_store_close(store_->get()) == EACCES;
    // One of its own works.
    auto own = peerlane::store::open_at(rig_.config.data + "/store.sock");
    const bool opens = own && own->open_pool("p") && own->get(pool_, "k", out) && out == value;
    _exit(is_refused ? opens ? 0 : 2 : 1);
  }
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  EXPECT_EQ(state, 0) << WEXITSTATUS(state);
  EXPECT_TRUE(later->wait());
  for (int i = 0; i < 20; ++i) {
    bytes_t out(20'000);
    const auto got = store_->get(pool_, "k", out);
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_EQ(out, value);
  }
}

TEST_F(store_api, OperationsEndForThoseWhoWaitInEveryWay) {
  constexpr std::size_t kItems = 20;
  std::vector<bytes_t> values;
  std::vector<std::string> keys;
  std::vector<peerlane_store_item> items(kItems);
  std::vector<peerlane_op_t> ops(kItems);
  std::atomic<int> calls{0};
  const int event = eventfd(0, EFD_CLOEXEC);
  for (std::size_t i = 0; i < kItems; ++i) {
    values.push_back(random_value(1000 * i + 1, i));
    keys.push_back("k" + std::to_string(i));
  }
  for (std::size_t i = 0; i < kItems; ++i) {
    items[i] = peerlane::store::item_for(PEERLANE_STORE_PUT, pool_, keys[i], values[i]);
    if (i % 5 == 0) items[i].event_fd = event;
  }
  ASSERT_EQ(peerlane_store_begin(store_->get(), items.data(), kItems, ops.data()), 0) << peerlane_store_last_error();
  for (std::size_t i = 0; i < kItems; i += 2)
    ASSERT_EQ(peerlane_op_then(
                  &ops[i],
                  [](void* context, const peerlane_op_info* info) {
                    if (info->error == 0) ++*static_cast<std::atomic<int>*>(context);
                  },
                  &calls),
              0);
  std::uint64_t signalled = 0;
  while (signalled < 4) {
    std::uint64_t more = 0;
    ASSERT_EQ(read(event, &more, sizeof more), static_cast<ssize_t>(sizeof more));
    signalled += more;
  }
  for (auto& op : ops) {
    const peerlane_op_t dead = op;
    peerlane_op_info info;
    EXPECT_EQ(peerlane_op_wait(&op, PEERLANE_NO_LIMIT, &info), 0) << peerlane_store_last_error();
    EXPECT_TRUE(peerlane_op_is_empty(&op));
    EXPECT_EQ(info.durability, static_cast<unsigned>(PEERLANE_DURABLE));
    int done = 0;
    EXPECT_EQ(peerlane_op_test(&op, &done, nullptr), 0);
    EXPECT_EQ(done, 1);
    peerlane_op_t again = dead;
    EXPECT_EQ(peerlane_op_wait(&again, 0, nullptr), EINVAL);
    EXPECT_EQ(peerlane_op_release(&again), EINVAL);
  }
  // Each function has returned before the wait for its operation did.
  EXPECT_EQ(calls, 10);
  close(event);
  std::size_t seen = 0;
  ASSERT_TRUE(store_->find(pool_, "k1", nullptr, [&](std::string_view key, std::uint64_t bytes) {
    EXPECT_TRUE(key.starts_with("k1"));
    EXPECT_EQ(bytes % 1000, 1u);
    return ++seen < 5;
  }));
  EXPECT_EQ(seen, 5u);
}

// Operations of this library and of libpeerlane in one wait; neither is linked to the other.
TEST_F(store_api, OneWaitTakesOperationsOfBothLibraries) {
  const test::current_device current(0);
  const test::device_buffer device(100'000);
  const auto value = random_value(50'000, 3);
  bytes_t got(value.size());
  auto copier = peerlane::copier::open();
  ASSERT_TRUE(copier) << copier.error().message;
  for (int round = 0; round < 2; ++round) {
    std::array<peerlane::operation, 3> all;
    auto put = store_->begin_put(pool_, "mixed", value);
    auto copied = copier->begin({{peerlane::device_buffer(device.pointer(), value.size()), value}});
    auto absent = store_->begin_get(pool_, "absent", got);
    ASSERT_TRUE(put && copied && absent);
    all[static_cast<std::size_t>(round)] = *std::move(put);
    all[static_cast<std::size_t>(1 - round)] = *std::move(copied);
    all[2] = *std::move(absent);
    std::array<peerlane::op_info, 3> infos{};
    const auto ended = peerlane::wait_all(all, peerlane::no_limit, infos);
    EXPECT_EQ(ended.code(), ENOENT);
    EXPECT_NE(ended.error().message.find("key"), std::string::npos) << ended.error().message;
    EXPECT_EQ(infos[2].error, ENOENT);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(infos[i].error, 0);
      EXPECT_EQ(infos[i].moved_bytes, value.size());
      EXPECT_TRUE(all[i].is_empty());
    }
    EXPECT_EQ(test::device_bytes(device.pointer(), value.size()), value);
  }
}

// Closing ends what is under way, says so, and leaves dead operations.
TEST_F(store_api, ClosingEndsWhatIsUnderWay) {
  const auto value = random_value(4'000'000, 3);
  auto put = store_->begin_put(pool_, "k", value);
  ASSERT_TRUE(put);
  std::atomic<int> calls{0}, code{-1};
  ASSERT_TRUE(put->then([&](const peerlane::op_info& info) {
    code = info.error;
    ++calls;
  }));
  ASSERT_TRUE(store_->close());
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(code == ECANCELED || code == 0) << code;
  EXPECT_EQ(put->wait().code(), EINVAL);
}

// Another thread is in a call on the store, which keeps the client behind it alive.
TEST_F(store_api, ClosingEndsWhatIsUnderWayBesideOtherThreads) {
  const auto value = random_value(4'000'000, 3);
  ASSERT_TRUE(store_->put(pool_, "k", value));
  std::atomic<bool> is_inside{false}, may_leave{false};
  std::thread other([&] {
    (void)store_->find(pool_, nullptr, nullptr, [&](std::string_view, std::uint64_t) {
      is_inside = true;
      while (!may_leave) std::this_thread::yield();
      return true;
    });
  });
  while (!is_inside) std::this_thread::yield();
  constexpr int kGets = 50;
  std::vector<bytes_t> rooms(kGets, bytes_t(4'000'000));
  std::vector<peerlane::operation> gets;
  std::atomic<int> calls{0};
  for (auto& room : rooms) {
    auto get = store_->begin_get(pool_, "k", room);
    ASSERT_TRUE(get) << get.error().message;
    ASSERT_TRUE(get->then([&](const peerlane::op_info&) { ++calls; }));
    gets.push_back(*std::move(get));
  }
  EXPECT_TRUE(store_->close());
  EXPECT_EQ(calls, kGets);
  EXPECT_EQ(gets.back().wait().code(), EINVAL);
  may_leave = true;
  other.join();
}

// A thread that waits for an operation learns its end before it may free the memory; calls in progress end too.
TEST_F(store_api, ThreadsThatUseAStoreWhileItIsClosed) {
  constexpr std::size_t kBytes = 1'000'000;
  const std::string address = rig_.config.data + "/store.sock";
  for (int round = 0; round < 20; ++round) {
    auto opened = peerlane::store::open_at(address);
    ASSERT_TRUE(opened) << opened.error().message;
    const auto pool = opened->open_pool("p");
    ASSERT_TRUE(pool);
    const peerlane_store_t handle = opened->get();  // as in C: the C++ object belongs to one thread
    std::vector<std::thread> others;
    for (unsigned i = 0; i < 4; ++i)
      others.emplace_back([&, i] {
        bytes_t bytes(kBytes);
        const auto item = peerlane::store::item_for(i % 2 == 0 ? PEERLANE_STORE_PUT : PEERLANE_STORE_GET, *pool, "k", bytes);
        for (int code = 0; code != EINVAL && code != ECANCELED;) {
          std::array<peerlane_op_t, 3> ops{};
          const std::array items{item, item, item};
          code = peerlane_store_begin(handle, items.data(), items.size(), ops.data());
          for (auto& op : ops)
            if (const int ended = peerlane_op_wait(&op, PEERLANE_NO_LIMIT, nullptr); ended != 0 && ended != ENOENT)
              code = ended;
        }
        std::fill(bytes.begin(), bytes.end(), 7);  // nothing else writes there any more
        std::this_thread::yield();
        EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 7), static_cast<std::ptrdiff_t>(kBytes));
      });
    std::this_thread::sleep_for(std::chrono::milliseconds(5 + round));
    EXPECT_TRUE(opened->close());
    for (auto& one : others) one.join();
  }
}

// The thread that calls the function is the store's own, or one that waits in a call on the store.
TEST_F(store_api, AFunctionDoesNotCloseTheStoreOfItsOperation) {
  const auto value = random_value(100'000, 3);
  for (const bool is_ended : {false, true}) {
    auto put = store_->begin_put(pool_, "k", value);
    ASSERT_TRUE(put);
    if (is_ended) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::atomic<int> code{-1}, of_another{-1};
    ASSERT_TRUE(put->then([&](const peerlane::op_info&) {
      auto other = peerlane::store::open_at(rig_.config.data + "/store.sock");
      of_another = other ? other->close().code() : other.code();
      code = store_->close().code();
    }));
    EXPECT_TRUE(put->wait());
    EXPECT_EQ(code, EDEADLK);
    EXPECT_EQ(of_another, 0);
  }
  EXPECT_TRUE(store_->put(pool_, "k", value)) << "the store is still open";
  EXPECT_TRUE(store_->close());
}

// What closed stores had of the server's memory is free, although their process lives on.
TEST_F(store_api, ClosingGivesTheMemoryBack) {
  const auto value = random_value(4'000'000, 3);
  bytes_t room(value.size());
  auto volatile_put = peerlane::store::put_options();
  volatile_put.durability = PEERLANE_VOLATILE;
  volatile_put.timeout_ms = 5'000;
  for (int round = 0; round < 12; ++round) {  // four of them are more than max_principal_memory_percent
    auto opened = peerlane::store::open_at(rig_.config.data + "/store.sock");
    ASSERT_TRUE(opened) << opened.error().message;
    const auto pool = opened->open_pool("p");
    ASSERT_TRUE(pool);
    const auto put = opened->put(*pool, "k", value, &volatile_put);
    ASSERT_TRUE(put) << "round " << round << ": " << put.error().message;
    EXPECT_TRUE(opened->get(*pool, "k", room));
    std::vector<peerlane::operation> ops;
    for (int i = 0; i < 4 && round % 2 == 0; ++i)
      if (auto one = opened->begin_put(*pool, "k", value, &volatile_put)) ops.push_back(*std::move(one));
    for (int i = 0; i < 4 && round % 4 != 0; ++i)
      if (auto one = opened->begin_get(*pool, "k", room)) ops.push_back(*std::move(one));
    for (int i = 0; i < round && !ops.empty(); ++i) (void)ops.front().test();
    ASSERT_TRUE(opened->close());
  }
}

TEST_F(store_api, MistakesAreErrorsWithASentence) {
  char byte = 0;
  const auto one_byte = peerlane_host_buffer(&byte, 1);
  peerlane_op_info reply;
  EXPECT_EQ(peerlane_store_open(nullptr, nullptr), EINVAL);
  peerlane_store_options options{};
  options.struct_bytes = sizeof options;
  options.socket = "/nowhere/at/all";
  peerlane_store_t store = nullptr;
  EXPECT_EQ(peerlane_store_open(&options, &store), ENOENT);
  EXPECT_NE(std::string(peerlane_store_last_error()).find("peerlane store serve"), std::string::npos);
  EXPECT_EQ(peerlane_store_put(nullptr, pool_, "k", 1, one_byte, nullptr, &reply), EINVAL);
  EXPECT_EQ(peerlane_store_put(store_->get(), pool_, nullptr, 1, one_byte, nullptr, &reply), EINVAL);
  EXPECT_EQ(peerlane_store_put(store_->get(), pool_, "k", 1, peerlane_host_buffer(nullptr, 1), nullptr, &reply), EINVAL);
  EXPECT_EQ(peerlane_store_put(store_->get(), pool_ + 99, "k", 1, one_byte, nullptr, &reply), ENXIO);
  EXPECT_EQ(reply.error, ENXIO);
  EXPECT_EQ(peerlane_store_put(store_->get(), pool_, "", 0, one_byte, nullptr, &reply), EINVAL);
  const std::string long_key(5000, 'k');
  EXPECT_EQ(peerlane_store_put(store_->get(), pool_, long_key.data(), long_key.size(), one_byte, nullptr, &reply), EMSGSIZE);
  EXPECT_EQ(peerlane_store_get(store_->get(), pool_, "absent", 6, one_byte, nullptr, &reply), ENOENT);
  peerlane_put_options put{};
  put.struct_bytes = sizeof put;
  put.durability = 77;
  EXPECT_EQ(peerlane_store_put(store_->get(), pool_, "k", 1, one_byte, &put, &reply), EINVAL);
  put.durability = 0;
  put.condition = PEERLANE_IF_VERSION;
  put.expected_version = 5;
  EXPECT_EQ(peerlane_store_put(store_->get(), pool_, "k", 1, one_byte, &put, &reply), ENOENT);
  peerlane_get_options get{};
  get.struct_bytes = sizeof get;
  get.on_stream = 1;
  EXPECT_EQ(peerlane_store_get(store_->get(), pool_, "k", 1, one_byte, &get, &reply), ENOTSUP);  // host memory
  peerlane_store_memory_t memory = nullptr;
  EXPECT_EQ(peerlane_store_register(store_->get(), peerlane_host_buffer(&byte, 0), &memory), EINVAL);
  EXPECT_EQ(peerlane_store_release_memory(nullptr), EINVAL);
  auto wrong = one_byte;
  wrong.memory = PEERLANE_MEMORY_DEVICE;
  EXPECT_EQ(peerlane_store_put(store_->get(), pool_, "k", 1, wrong, nullptr, &reply), EINVAL);
  EXPECT_NE(std::string(peerlane_store_last_error()).find("device memory"), std::string::npos);
  wrong.memory = 3;
  EXPECT_EQ(peerlane_store_put(store_->get(), pool_, "k", 1, wrong, nullptr, &reply), EINVAL);
}

// A negative number that became a size, and options whose size nobody has set.
TEST_F(store_api, SizesAndOptionsThatCannotBeAreRefused) {
  char byte = 0;
  const auto one_byte = peerlane_host_buffer(&byte, 1);
  const auto store = store_->get();
  const auto count = static_cast<std::size_t>(-1);
  peerlane_op_info reply;
  reply.error = 0;
  EXPECT_EQ(peerlane_store_put(store, pool_, "k", count, one_byte, nullptr, &reply), EMSGSIZE);
  EXPECT_EQ(reply.error, EMSGSIZE) << "it is always written";
  EXPECT_EQ(peerlane_store_stat(store, pool_, "k", count, &reply), EMSGSIZE);
  EXPECT_EQ(peerlane_store_erase_prefix(store, pool_, "k", count, nullptr), EMSGSIZE);
  EXPECT_EQ(peerlane_store_put(store, pool_, "k", 1, peerlane_host_buffer(&byte, count), nullptr, &reply), EINVAL);
  EXPECT_EQ(peerlane_store_get(store, pool_, "k", 1, peerlane_host_buffer(&byte, count), nullptr, &reply), EINVAL);
  EXPECT_EQ(peerlane_store_put(store, pool_, "k", 1, peerlane_host_buffer(&byte, std::size_t{1} << 40), nullptr, &reply),
            EFBIG);
  peerlane_store_item item{};
  item.request = PEERLANE_STORE_PUT;
  item.pool = pool_;
  item.key = "k";
  item.key_size_bytes = 1;
  item.value = one_byte;
  peerlane_op_t op{};
  EXPECT_EQ(peerlane_store_batch(store, &item, count, nullptr, &reply), EINVAL);
  EXPECT_EQ(peerlane_store_begin(store, &item, count, &op), EINVAL);
  EXPECT_NE(std::string(peerlane_store_last_error()).find("count is"), std::string::npos);
  peerlane_scan_options scan{};
  scan.struct_bytes = sizeof scan;
  scan.after = "k";
  scan.after_size_bytes = count;
  const auto each = [](void*, const void*, std::size_t, const peerlane_op_info*) { return 0; };
  EXPECT_EQ(peerlane_store_scan(store, pool_, &scan, each, nullptr), EMSGSIZE);

  peerlane_put_options put{};
  put.condition = PEERLANE_IF_PRESENT;
  EXPECT_EQ(peerlane_store_put(store, pool_, "k", 1, one_byte, &put, &reply), EINVAL) << "without its size";
  EXPECT_EQ(peerlane_store_stat(store, pool_, "k", 1, &reply), ENOENT) << "it is not put without its condition";
  EXPECT_EQ(reply.error, ENOENT);
  put.struct_bytes = sizeof put;
  put.reserved = 1;
  EXPECT_EQ(peerlane_store_put(store, pool_, "k", 1, one_byte, &put, &reply), EINVAL);
  peerlane_pool_options pool{};
  peerlane_pool_t made = 0;
  EXPECT_EQ(peerlane_store_create_pool(store, "q", &pool, &made), EINVAL);
  pool.struct_bytes = sizeof pool;
  pool.reserved = 1;
  EXPECT_EQ(peerlane_store_create_pool(store, "q", &pool, &made), EINVAL);

  const std::string socket = rig_.config.data + "/store.sock";
  const auto opening = [&](auto&& change) {
    peerlane_store_options options{};
    options.struct_bytes = sizeof options;
    options.socket = socket.c_str();
    change(options);
    peerlane_store_t other = nullptr;
    const int code = peerlane_store_open(&options, &other);
    if (code == 0) peerlane_store_close(other);
    return code;
  };
  EXPECT_EQ(opening([](auto&) {}), 0);
  EXPECT_EQ(opening([](auto& options) { options.struct_bytes = 0; }), EINVAL);
  EXPECT_EQ(opening([](auto& options) { options.flags = 1u << 31; }), EINVAL);
  EXPECT_EQ(opening([](auto& options) { options.require_path = 2; }), EINVAL);
  EXPECT_EQ(opening([](auto& options) { options.endpoint = "127.0.0.1:1"; }), EINVAL);
}

}  // namespace
}  // namespace pl::store_test
