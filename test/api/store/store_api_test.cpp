// SPDX-License-Identifier: Apache-2.0
// The store's public interface as programs load it (libpeerlane_store), against a server in this process and the simulated
// GPU.
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <peerlane/store.hpp>

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
  auto put = store_->put(pool_, "k", value.data(), bytes);
  ASSERT_TRUE(put) << put.error().message;
  EXPECT_EQ(put->path, static_cast<unsigned>(PEERLANE_PATH_SHM_DIRECT));
  EXPECT_EQ(put->durability, static_cast<unsigned>(PEERLANE_DURABLE));
  auto got = store_->get(pool_, "k", reinterpret_cast<void*>(device.pointer()), bytes);
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_EQ(got->moved_bytes, bytes);
  EXPECT_EQ(got->crc32c, put->crc32c);
  EXPECT_EQ(test::device_bytes(device.pointer(), bytes), value);

  // Registered memory, and a part of it.
  auto memory = store_->register_direct_memory(reinterpret_cast<void*>(device.pointer()), bytes);
  ASSERT_TRUE(memory) << memory.error().message;
  peerlane_put_options options{};
  options.struct_bytes = sizeof options;
  options.durability = PEERLANE_VOLATILE;
  auto part = store_->put_direct(pool_, "part", *memory, 1000, 50'000, &options);
  ASSERT_TRUE(part) << part.error().message;
  EXPECT_EQ(part->durability, static_cast<unsigned>(PEERLANE_VOLATILE));
  bytes_t room(60'000);
  got = store_->get(pool_, "part", room.data(), room.size());
  ASSERT_TRUE(got);
  room.resize(got->moved_bytes);
  EXPECT_EQ(room, bytes_t(value.begin() + 1000, value.begin() + 51'000));
  EXPECT_EQ(store_->put_direct(pool_, "part", *memory, bytes - 10, 11).code(), EINVAL);
  EXPECT_EQ(peerlane_store_close(store_->get()), EBUSY);  // memory is registered
}

TEST_F(store_api, OperationsEndForThoseWhoWaitInEveryWay) {
  constexpr std::size_t kItems = 20;
  std::vector<bytes_t> values;
  std::vector<std::string> keys;
  std::vector<peerlane_store_item> items(kItems);
  std::vector<peerlane_store_op_t> ops(kItems);
  std::atomic<int> calls{0};
  const int event = eventfd(0, EFD_CLOEXEC);
  for (std::size_t i = 0; i < kItems; ++i) {
    values.push_back(random_value(1000 * i + 1, i));
    keys.push_back("k" + std::to_string(i));
  }
  for (std::size_t i = 0; i < kItems; ++i) {
    auto& item = items[i];
    item = {};
    item.operation = PEERLANE_STORE_PUT;
    item.pool = pool_;
    item.key = keys[i].data();
    item.key_bytes = keys[i].size();
    item.value = values[i].data();
    item.bytes = values[i].size();
    if (i % 2 == 0) {
      item.done = [](void* context, const peerlane_store_reply* reply) {
        if (reply->status == 0) ++*static_cast<std::atomic<int>*>(context);
      };
      item.context = &calls;
    }
    if (i % 5 == 0) item.event_fd = event;
  }
  ASSERT_EQ(peerlane_store_begin(store_->get(), items.data(), kItems, ops.data()), 0) << peerlane_store_last_error();
  std::uint64_t signalled = 0;
  while (signalled < 4) {
    std::uint64_t more = 0;
    ASSERT_EQ(read(event, &more, sizeof more), static_cast<ssize_t>(sizeof more));
    signalled += more;
  }
  for (const auto op : ops) {
    peerlane_store_reply reply;
    EXPECT_EQ(peerlane_store_wait(op, -1, &reply), 0) << peerlane_store_last_error();
    int done = 0;
    EXPECT_EQ(peerlane_store_test(op, &done), 0);
    EXPECT_EQ(done, 1);
    EXPECT_EQ(peerlane_store_free(op), 0);
    EXPECT_EQ(peerlane_store_free(op), EINVAL);
  }
  const auto limit = store_client::clock::now() + std::chrono::seconds(10);
  while (calls < 10 && store_client::clock::now() < limit) std::this_thread::yield();
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

TEST_F(store_api, MistakesAreErrorsWithASentence) {
  char byte = 0;
  peerlane_store_reply reply;
  EXPECT_EQ(peerlane_store_open(nullptr, nullptr), EINVAL);
  peerlane_store_options options{};
  options.struct_bytes = sizeof options;
  options.socket = "/nowhere/at/all";
  peerlane_store_t store = nullptr;
  EXPECT_EQ(peerlane_store_open(&options, &store), ENOENT);
  EXPECT_NE(std::string(peerlane_store_last_error()).find("peerlane store serve"), std::string::npos);
  EXPECT_EQ(peerlane_store_put(nullptr, pool_, "k", 1, &byte, 1, nullptr, &reply), EINVAL);
  EXPECT_EQ(peerlane_store_put(store_->get(), pool_, nullptr, 1, &byte, 1, nullptr, &reply), EINVAL);
  EXPECT_EQ(peerlane_store_put(store_->get(), pool_, "k", 1, nullptr, 1, nullptr, &reply), EINVAL);
  EXPECT_EQ(peerlane_store_put(store_->get(), pool_ + 99, "k", 1, &byte, 1, nullptr, &reply), ENXIO);
  EXPECT_EQ(reply.status, ENXIO);
  EXPECT_EQ(peerlane_store_put(store_->get(), pool_, "", 0, &byte, 1, nullptr, &reply), EINVAL);
  const std::string long_key(5000, 'k');
  EXPECT_EQ(peerlane_store_put(store_->get(), pool_, long_key.data(), long_key.size(), &byte, 1, nullptr, &reply), EMSGSIZE);
  EXPECT_EQ(peerlane_store_get(store_->get(), pool_, "absent", 6, &byte, 1, nullptr, &reply), ENOENT);
  peerlane_put_options put{};
  put.struct_bytes = sizeof put;
  put.durability = 77;
  EXPECT_EQ(peerlane_store_put(store_->get(), pool_, "k", 1, &byte, 1, &put, &reply), EINVAL);
  put.durability = 0;
  put.condition = PEERLANE_IF_VERSION;
  put.expected_version = 5;
  EXPECT_EQ(peerlane_store_put(store_->get(), pool_, "k", 1, &byte, 1, &put, &reply), ENOENT);
  peerlane_get_options get{};
  get.struct_bytes = sizeof get;
  get.on_stream = 1;
  EXPECT_EQ(peerlane_store_get(store_->get(), pool_, "k", 1, &byte, 1, &get, &reply), ENOTSUP);  // host memory
  peerlane_direct_memory_t memory = nullptr;
  EXPECT_EQ(peerlane_store_register_direct_memory(store_->get(), &byte, 0, &memory), EINVAL);
  EXPECT_EQ(peerlane_store_unregister_direct_memory(nullptr), EINVAL);
  EXPECT_EQ(peerlane_store_wait(nullptr, 0, nullptr), EINVAL);
}

}  // namespace
}  // namespace pl::store_test
