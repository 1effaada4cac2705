// SPDX-License-Identifier: Apache-2.0
// libpeerlane_store as programs load it, against a cluster: every call finds its way, by the shortest path, also while
// servers go. The simulated GPU.
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <peerlane/store.hpp>
#include <thread>

#include "test/store/cluster/cluster_rig.hpp"
#include "test/support/sim_fixture.hpp"

namespace pl::store_test {
namespace {

constexpr std::uint64_t kKeys = 24;
std::string key_at(std::uint64_t i) { return "key" + std::to_string(i); }
// Some go in one frame, some in the store's memory.
bytes_t value_at(std::uint64_t i) { return random_value(i % 3 == 0 ? 200'000 + i : 100 + i, i); }

class cluster_api : public testing::Test {
 protected:
  void SetUp() override {
    if (!etcd_is_there()) GTEST_SKIP() << kNoEtcd;
    test::simulated_cuda();
    rig_ = std::make_unique<cluster_rig>();
    for (const char* name : {"a", "b", "c"}) rig_->start(name);
    ASSERT_TRUE(rig_->settled({"a", "b", "c"}));
    store_ = open();
    peerlane_pool_options options{};
    options.struct_bytes = sizeof options;
    options.durability = PEERLANE_LOGGED;
    options.copies = 2;
    const auto pool = store_->create_pool("p", &options);
    ASSERT_TRUE(pool) << pool.error().message;
    pool_ = *pool;
  }
  std::unique_ptr<peerlane::store> open(std::uint32_t flags = 0, std::uint32_t require = 0) {
    const std::string endpoint = rig_->server("a").config.listen;
    peerlane_store_options options{};
    options.struct_bytes = sizeof options;
    options.endpoint = endpoint.c_str();
    options.flags = flags;
    options.require_path = require;
    options.timeout_ms = 90'000;  // servers that start under a sanitizer, beside other tests, took more than 30 s
    auto made = peerlane::store::open(&options);
    EXPECT_TRUE(made) << made.error().message;
    return made ? std::make_unique<peerlane::store>(*std::move(made)) : nullptr;
  }
  std::string read_back(peerlane::store& store, peerlane_pool_t pool, const std::string& key, const bytes_t& wanted,
                        std::uint32_t path) {
    bytes_t out(wanted.size() + 1);
    const auto got = store.get(pool, key, out);
    if (!got) return key + ": " + got.error().message;
    out.resize(got->moved_bytes);
    if (out != wanted) return key + " has other bytes";
    return path == 0 || got->path == path ? "" : key + " came by path " + std::to_string(got->path);
  }
  void put_all() {
    for (std::uint64_t i = 0; i < kKeys; ++i) {
      const auto value = value_at(i);
      const auto done = store_->put(pool_, key_at(i), value);
      ASSERT_TRUE(done) << done.error().message;
    }
  }
  std::unique_ptr<cluster_rig> rig_;
  std::unique_ptr<peerlane::store> store_;
  peerlane_pool_t pool_ = 0;
};

TEST_F(cluster_api, EachKeyIsReachedByTheShortestWayToWhoeverHasIt) {
  put_all();
  const auto large = value_at(0);
  for (std::uint64_t i = 0; i < kKeys; ++i)
    EXPECT_EQ(read_back(*store_, pool_, key_at(i), value_at(i), i % 3 == 0 ? PEERLANE_PATH_SHM_DIRECT : PEERLANE_PATH_UNIX),
              "")
        << "all servers are of this host";
  const auto by_tcp = open(PEERLANE_STORE_NO_SHM);
  const auto same = by_tcp->open_pool("p");
  ASSERT_TRUE(same);
  for (std::uint64_t i = 0; i < kKeys; ++i)
    EXPECT_EQ(read_back(*by_tcp, *same, key_at(i), value_at(i), PEERLANE_PATH_TCP), "");
  const auto strict = open(PEERLANE_STORE_NO_SHM, PEERLANE_PATH_SHM_DIRECT);
  EXPECT_EQ(strict->put(*strict->open_pool("p"), "x", large).code(), ENOTSUP);
  // One server by itself has not all of them.
  const auto alone = open(PEERLANE_STORE_ONE_SERVER);
  const auto other_pool = alone->open_pool("p");
  ASSERT_TRUE(other_pool);
  int others = 0;
  for (std::uint64_t i = 0; i < kKeys; ++i) others += alone->stat(*other_pool, key_at(i)).code() == EREMOTE ? 1 : 0;
  EXPECT_GT(others, 0);
  EXPECT_LT(others, static_cast<int>(kKeys));
}

TEST_F(cluster_api, PartsConditionsListsAndPools) {
  put_all();
  for (const std::uint64_t i : {0u, 1u}) {  // long and short
    auto value = value_at(i);
    const auto part = random_value(50, 99);
    std::copy(part.begin(), part.end(), value.begin() + 30);
    peerlane_put_options options{};
    options.struct_bytes = sizeof options;
    options.is_part = 1;
    options.offset_bytes = 30;
    auto done = store_->put(pool_, key_at(i), part, &options);
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_EQ(read_back(*store_, pool_, key_at(i), value, 0), "");
    // A part of what is not there: zeros before it.
    ASSERT_TRUE(store_->put(pool_, "new" + key_at(i), part, &options));
    bytes_t grown(80, 0);
    std::copy(part.begin(), part.end(), grown.begin() + 30);
    EXPECT_EQ(read_back(*store_, pool_, "new" + key_at(i), grown, 0), "");
    peerlane_get_options part_options{};
    part_options.struct_bytes = sizeof part_options;
    part_options.offset_bytes = 30;
    bytes_t out(50);
    const auto got = store_->get(pool_, key_at(i), out, &part_options);
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_EQ(out, part);
    options = {};
    options.struct_bytes = sizeof options;
    options.condition = PEERLANE_IF_ABSENT;
    EXPECT_EQ(store_->put(pool_, key_at(i), part, &options).code(), EEXIST);
    options.condition = PEERLANE_IF_VERSION;
    options.expected_version = got->version;
    EXPECT_TRUE(store_->put(pool_, key_at(i), value, &options));
    EXPECT_EQ(store_->put(pool_, key_at(i), value, &options).code(), ESTALE);
  }
  std::vector<std::string> keys;
  ASSERT_TRUE(store_->find(pool_, "key", nullptr, [&](std::string_view key, std::uint64_t) {
    keys.emplace_back(key);
    return true;
  }));
  EXPECT_EQ(keys.size(), kKeys);
  EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end()));
  EXPECT_TRUE(store_->erase(pool_, key_at(0)));
  EXPECT_EQ(store_->stat(pool_, key_at(0)).code(), ENOENT);
  EXPECT_EQ(store_->stat(pool_, key_at(1))->size_bytes, value_at(1).size());
  EXPECT_TRUE(store_->sync(pool_));
  EXPECT_EQ(store_->create_pool("p").code(), EEXIST);
  EXPECT_EQ(peerlane_store_delete_pool(store_->get(), "p"), 0) << peerlane_store_last_error();
  EXPECT_EQ(store_->open_pool("p").code(), ENXIO);
}

TEST_F(cluster_api, DeviceMemoryAndStreams) {
  const test::current_device current(0);
  const std::size_t bytes = 300'000;
  const test::device_buffer device(bytes);
  const auto address = peerlane::device_buffer(device.pointer(), bytes);
  for (const auto flags : {0u, PEERLANE_STORE_NO_SHM}) {
    const auto store = open(flags);
    const auto pool = store->open_pool("p");
    ASSERT_TRUE(pool);
    for (std::uint64_t i = 0; i < 6; ++i) {
      const auto value = random_value(bytes, i);
      ASSERT_TRUE(store->put(*pool, "d", value));
      ASSERT_TRUE(store->get(*pool, "d", address));
      EXPECT_EQ(test::device_bytes(device.pointer(), bytes), value);
      const auto key = "from" + std::to_string(i);
      const auto done = store->put(*pool, key, address);
      ASSERT_TRUE(done) << done.error().message;
      EXPECT_EQ(done->path, flags == 0 ? PEERLANE_PATH_SHM_DIRECT : PEERLANE_PATH_TCP);
      EXPECT_EQ(read_back(*store, *pool, key, value, 0), "");
      auto memory = store->register_memory(address);
      ASSERT_TRUE(memory);
      ASSERT_TRUE(store->put_registered(*pool, key, *memory, 1000, 50'000));
      EXPECT_EQ(read_back(*store, *pool, key, bytes_t(value.begin() + 1000, value.begin() + 51'000), 0), "");
    }
    peerlane_get_options ordered{};
    ordered.struct_bytes = sizeof ordered;
    ordered.on_stream = 1;
    const auto got = store->get(*pool, "d", address, &ordered);
    EXPECT_EQ(got.code(), flags == 0 ? 0 : ENOTSUP) << got.error().message;
  }
}

TEST_F(cluster_api, ManyAtOnceEndInEveryWayWhileAServerGoes) {
  constexpr std::size_t kItems = 300;
  std::vector<bytes_t> values;
  std::vector<std::string> keys;
  std::vector<peerlane_store_item> items(kItems);
  std::vector<peerlane_op_t> ops(kItems);
  struct counted {
    std::atomic<int> calls{0}, failures{0};
  } counts_seen;
  const int event = eventfd(0, EFD_CLOEXEC);
  for (std::size_t i = 0; i < kItems; ++i) {
    values.push_back(random_value(i % 7 == 0 ? 50'000 : 300, i));
    keys.push_back("many" + std::to_string(i));
  }
  for (std::size_t i = 0; i < kItems; ++i) {
    items[i] = peerlane::store::item_for(PEERLANE_STORE_PUT, pool_, keys[i], values[i]);
    items[i].event_fd = event;
  }
  std::thread other([&] { rig_->stop("b"); });
  ASSERT_EQ(peerlane_store_begin(store_->get(), items.data(), kItems, ops.data()), 0) << peerlane_store_last_error();
  for (const auto& op : ops)
    EXPECT_EQ(peerlane_op_then(
                  &op,
                  [](void* context, const peerlane_op_info* info) {
                    auto& counts = *static_cast<counted*>(context);
                    if (info->error != 0) ++counts.failures;
                    ++counts.calls;
                  },
                  &counts_seen),
              0);
  EXPECT_EQ(peerlane_wait_all(ops.data(), kItems, PEERLANE_NO_LIMIT, nullptr), 0) << peerlane_op_last_error(&ops[0]);
  other.join();
  for (std::uint64_t signalled = 0; signalled < kItems;) {
    std::uint64_t more = 0;
    ASSERT_EQ(read(event, &more, sizeof more), static_cast<ssize_t>(sizeof more));
    signalled += more;
  }
  close(event);
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (counts_seen.calls < static_cast<int>(kItems) && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
  EXPECT_EQ(counts_seen.calls, static_cast<int>(kItems)) << "each once";
  EXPECT_EQ(counts_seen.failures, 0);
  for (std::size_t i = 0; i < kItems; ++i) EXPECT_EQ(read_back(*store_, pool_, keys[i], values[i], 0), "");
  // One invalid item: none begins.
  items[5].key = nullptr;
  EXPECT_EQ(peerlane_store_begin(store_->get(), items.data(), kItems, ops.data()), EINVAL);
  EXPECT_NE(std::string(peerlane_store_last_error()).find("item 5"), std::string::npos);
}

// As test/api/store: closing ends everything, whichever threads use the store, and is refused in its functions.
TEST_F(cluster_api, ClosingEndsTheCallsOfOtherThreads) {
  put_all();
  constexpr int kGets = 200;
  std::vector<bytes_t> rooms(kGets, bytes_t(300'000));
  const peerlane_store_t handle = store_->get();
  std::atomic<int> calls{0}, refused{0};
  std::vector<peerlane::operation> gets;
  for (int i = 0; i < kGets; ++i) {
    auto get = store_->begin_get(pool_, key_at(static_cast<std::uint64_t>(i) % kKeys), rooms[static_cast<std::size_t>(i)]);
    ASSERT_TRUE(get) << get.error().message;
    ASSERT_TRUE(get->then([&](const peerlane::op_info&) {
      if (peerlane_store_close(handle) == EDEADLK) ++refused;
      ++calls;
    }));
    gets.push_back(*std::move(get));
  }
  std::vector<std::thread> others;
  std::array<std::atomic<int>, 4> codes{};
  std::atomic<int> begun{0};
  for (std::size_t i = 0; i < codes.size(); ++i)
    others.emplace_back([&, i] {
      const std::string key = key_at(i);
      bytes_t value(100'000);
      ++begun;
      for (int code = 0; codes[i] == 0; codes[i] = code)
        code = i == 0 ? peerlane_store_sync(handle, pool_)
                      : peerlane_store_put(handle, pool_, key.data(), key.size(), peerlane::buffer(value), nullptr, nullptr);
    });
  while (begun < static_cast<int>(codes.size())) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  rig_->stop_together({"a", "b", "c"});  // the calls look for servers
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const auto began = std::chrono::steady_clock::now();
  EXPECT_TRUE(store_->close());
  for (auto& one : others) one.join();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20)) << "their timeout is 90 s";
  EXPECT_EQ(calls, kGets);
  EXPECT_EQ(refused, kGets);
  for (const auto& code : codes) EXPECT_TRUE(code == ECANCELED || code == EINVAL) << code;
}

TEST_F(cluster_api, PutsWaitUntilServersReturn) {
  const auto value = random_value(100, 1);
  rig_->stop_together({"a", "b", "c"});
  auto later = store_->begin_put(pool_, "k", value);
  ASSERT_TRUE(later) << later.error().message;
  EXPECT_EQ(later->wait(std::chrono::milliseconds(200)).code(), ETIMEDOUT) << "nobody is there: it goes on";
  rig_->start("a");
  rig_->start("b");
  const auto done = later->wait();
  EXPECT_TRUE(done) << done.error().message;
}

}  // namespace
}  // namespace pl::store_test
