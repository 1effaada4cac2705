// SPDX-License-Identifier: Apache-2.0
// Values between the store and GPU memory (the simulated GPU): by one copy through the mapped arena, and through sockets.
#include "copy/planner.hpp"
#include "test/store/server/store_rig.hpp"
#include "test/support/sim_fixture.hpp"

namespace pl::store_test {
namespace {

using store_protocol::durability;
using store_protocol::path;

class gpu_rig {
 public:
  void open(bool shm, bool ucx = false) {
    if (ucx) rig_.config.ucx = "on";
    rig_.start();
    auto opened = copy::planner::open(test::simulated_cuda(), copy::planner::options_from_environment());
    ASSERT_TRUE(opened) << opened.error().message;
    copies_ = *std::move(opened);
    auto options = rig_.over_unix();
    options.use_shm = shm;
    if (ucx) options.ucx = store_client::ucx_mode::on;
    options.copies = copies_.get();
    options.cuda = &test::simulated_cuda();
    store_ = store_rig::open(options);
    ASSERT_NE(store_, nullptr);
    pool_ = make_pool(*store_, "p");
  }
  store_client::reply put_of(std::uint64_t address, std::size_t bytes) {
    return store_->run(store_->make_put(pool_, "k", device(address, bytes), at_level(durability::durable)));
  }
  store_client::memory device(std::uint64_t address, std::size_t bytes) {
    auto found = store_->classify(address, bytes);
    EXPECT_TRUE(found && found->device);
    return *found;
  }

 protected:
  const test::current_device current_{0};
  store_rig rig_;
  std::unique_ptr<copy::planner> copies_;
  std::unique_ptr<store_client::client> store_;
  std::uint32_t pool_ = 0;
};

class store_gpu : public gpu_rig, public testing::TestWithParam<bool> {  // true: shared memory
 protected:
  void SetUp() override { open(GetParam()); }
  path expected(std::size_t bytes) const { return GetParam() && bytes > 16384 ? path::shm_direct : path::unix_socket; }
};

class store_gpu_ucx : public gpu_rig, public testing::Test {
 protected:
  void SetUp() override {
    open(false, true);
    if (!store_->why_no_ucx().empty()) GTEST_SKIP() << store_->why_no_ucx();
  }
};

// Through pinned memory a chunk at a time, in both directions at once.
TEST_F(store_gpu_ucx, PutsAndGetsGoThroughIt) {
  for (const std::size_t bytes : {300'000u, 1u << 20, (21u << 20) + 3}) {
    const test::device_buffer source(bytes), destination(bytes);
    const auto value = test::random_bytes(bytes, bytes);
    test::set_device_bytes(source.pointer(), value);
    const auto answer = put_of(source.pointer(), bytes);
    ASSERT_EQ(answer.status, 0) << answer.text;
    EXPECT_EQ(answer.result.way, path::ucx);
    EXPECT_EQ(get(*store_, pool_, "k", bytes), value);
    const auto again = store_->make_put(pool_, "other", device(source.pointer(), bytes), at_level(durability::volatile_));
    const auto back = store_->make_get(pool_, "k", device(destination.pointer(), bytes), {});
    store_->start(std::vector{again, back});
    ASSERT_TRUE(store_->wait(again) && store_->wait(back));
    EXPECT_EQ(again->got.status, 0) << again->got.text;
    ASSERT_EQ(back->got.status, 0) << back->got.text;
    EXPECT_EQ(back->got.result.way, path::ucx);
    EXPECT_EQ(test::device_bytes(destination.pointer(), bytes), value) << bytes;
  }
}

class store_gpu_streams : public gpu_rig, public testing::Test {
 protected:
  void SetUp() override { open(true); }
};

TEST_P(store_gpu, PutsAndGetsOfEverySize) {
  for (const std::size_t bytes : {1u, 4096u, 16384u, 16385u, 262'145u, 300'000u, (5u << 20) + 3}) {
    const test::device_buffer source(bytes), destination(bytes);
    const auto value = test::random_bytes(bytes, bytes);
    test::set_device_bytes(source.pointer(), value);
    const auto answer =
        store_->run(store_->make_put(pool_, "k", device(source.pointer(), bytes), at_level(durability::durable)));
    ASSERT_EQ(answer.status, 0) << answer.text;
    EXPECT_EQ(answer.result.way, expected(bytes)) << bytes;
    EXPECT_EQ(get(*store_, pool_, "k", bytes), value) << bytes;  // as the CPU sees it
    // The checksum that the client told is that of the bytes.
    store_client::get_request verified;
    verified.verify = true;
    const auto got = store_->run(store_->make_get(pool_, "k", device(destination.pointer(), bytes), verified));
    ASSERT_EQ(got.status, 0) << got.text;
    EXPECT_EQ(got.result.way, expected(bytes)) << bytes;
    EXPECT_EQ(test::device_bytes(destination.pointer(), bytes), value) << bytes;
  }
  EXPECT_EQ(store_->why_not_pinned(), "");
}

// The parts in which a put is copied and summed: all of the value, few of them, short ones at the end.
TEST(checksum_parts, EndWithShortOnes) {
  for (const std::uint64_t bytes : {1ull, 262'144ull, 262'145ull, (5ull << 20) + 3, 128ull << 20, (1ull << 30) + 1}) {
    std::uint64_t left = bytes, parts = 0, last = 0, before = ~0ull;
    for (; left > 0; left -= last, ++parts) {
      last = store_client::checksum_pool::copy_bytes(left);
      ASSERT_TRUE(last > 0 && last <= left && last <= before) << left;
      before = last;
    }
    EXPECT_LE(last, 256u << 10) << bytes;
    EXPECT_LE(parts, 24 + bytes / (4u << 20)) << bytes;
  }
}

TEST_P(store_gpu, PartsIntoTheMiddleOfABuffer) {
  const std::size_t bytes = 2 << 20;
  const test::device_buffer buffer(bytes);
  const auto value = test::random_bytes(bytes, 1);
  ASSERT_EQ(put(*store_, pool_, "k", value).status, 0);
  test::set_device_bytes(buffer.pointer(), bytes_t(bytes, 0xcc));
  store_client::get_request options;
  options.offset = 12345;
  ASSERT_EQ(store_->run(store_->make_get(pool_, "k", device(buffer.pointer() + 777, 1'000'000), options)).status, 0);
  auto expected_bytes = bytes_t(bytes, 0xcc);
  std::copy_n(value.begin() + 12345, 1'000'000, expected_bytes.begin() + 777);
  EXPECT_EQ(test::device_bytes(buffer.pointer(), bytes), expected_bytes);
}

TEST_P(store_gpu, ManyAtOnce) {
  const std::size_t bytes = 1 << 20;
  const test::device_buffer source(8 * bytes), destination(8 * bytes);
  test::set_device_bytes(source.pointer(), test::random_bytes(8 * bytes, 2));
  std::vector<store_client::operation_ptr> all;
  for (std::size_t i = 0; i < 8; ++i)
    all.push_back(store_->make_put(pool_, std::to_string(i), device(source.pointer() + i * bytes, bytes),
                                   at_level(durability::volatile_)));
  store_->start(all);
  for (const auto& one : all) {
    ASSERT_TRUE(store_->wait(one));
    ASSERT_EQ(one->got.status, 0) << one->got.text;
  }
  all.clear();
  for (std::size_t i = 0; i < 8; ++i)
    all.push_back(store_->make_get(pool_, std::to_string(i), device(destination.pointer() + i * bytes, bytes), {}));
  store_->start(all);
  for (const auto& one : all) {
    ASSERT_TRUE(store_->wait(one));
    ASSERT_EQ(one->got.status, 0) << one->got.text;
  }
  EXPECT_EQ(test::device_bytes(destination.pointer(), 8 * bytes), test::device_bytes(source.pointer(), 8 * bytes));
}

INSTANTIATE_TEST_SUITE_P(all, store_gpu, testing::Values(true, false),
                         [](const auto& one) { return one.param ? "shm" : "socket"; });

// A put waits for what its stream has queued; a get is there for what is queued behind it.
TEST_F(store_gpu_streams, OrderWithAStream) {
  const auto& cuda = test::simulated_cuda();
  const std::size_t bytes = 1 << 20;
  const test::device_buffer buffer(bytes), copy_of(bytes);
  cu::stream_t stream = nullptr;
  ASSERT_EQ(cuda.cuStreamCreate(&stream, cu::stream_flag::non_blocking), 0);
  void* gate_memory = nullptr;
  ASSERT_EQ(cuda.cuMemHostAlloc(&gate_memory, 64, 0), 0);
  auto* gate = static_cast<std::uint32_t*>(gate_memory);
  __atomic_store_n(gate, 0u, __ATOMIC_RELEASE);

  ASSERT_EQ(cuda.cuStreamWaitValue32_v2(stream, copy::address_of(gate), 1, cu::wait_value::eq), 0);
  ASSERT_EQ(cuda.cuMemsetD8Async(buffer.pointer(), 0x5a, bytes, stream), 0);
  store_client::put_request options = at_level(durability::volatile_);
  options.order = {true, stream};
  const auto put_op = store_->make_put(pool_, "k", device(buffer.pointer(), bytes), options);
  store_->start(put_op);
  EXPECT_FALSE(store_->wait(put_op, store_client::clock::now() + std::chrono::milliseconds(10)));
  __atomic_store_n(gate, 1u, __ATOMIC_RELEASE);
  ASSERT_TRUE(store_->wait(put_op));
  ASSERT_EQ(put_op->got.status, 0) << put_op->got.text;
  EXPECT_EQ(get(*store_, pool_, "k", bytes), bytes_t(bytes, 0x5a));

  ASSERT_EQ(cuda.cuMemsetD8Async(buffer.pointer(), 0, bytes, stream), 0);
  store_client::get_request get_how;
  get_how.order = {true, stream};
  const auto get_op = store_->make_get(pool_, "k", device(buffer.pointer(), bytes), get_how);
  get_op->leave_to_stream = true;
  const auto got = store_->run(get_op);
  ASSERT_EQ(got.status, 0) << got.text;
  ASSERT_EQ(cuda.cuMemcpyDtoDAsync_v2(copy_of.pointer(), buffer.pointer(), bytes, stream), 0);
  ASSERT_EQ(cuda.cuStreamSynchronize(stream), 0);
  EXPECT_EQ(test::device_bytes(copy_of.pointer(), bytes), bytes_t(bytes, 0x5a));
  cuda.cuStreamDestroy_v2(stream);
  cuda.cuMemFreeHost(gate_memory);
}

}  // namespace
}  // namespace pl::store_test
