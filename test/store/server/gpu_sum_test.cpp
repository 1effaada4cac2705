// SPDX-License-Identifier: Apache-2.0
// Puts from GPU memory whose checksum the (simulated) GPU makes: when it does, when it cannot, and when it is kept from it.
#include <atomic>

#include "copy/checksum_protocol.hpp"
#include "copy/planner.hpp"
#include "test/store/server/store_rig.hpp"
#include "test/support/sim_fixture.hpp"

namespace pl::store_test {
namespace {

using store_protocol::durability;
using store_protocol::path;

// Launches that the table below has seen, and the word that they wait for, if any: the GPU is full of other kernels.
std::atomic<int> g_launches{0};
std::atomic<std::uint32_t*> g_held_by{nullptr};

class store_gpu_sum : public testing::Test {
 protected:
  void SetUp() override {
    void* memory = nullptr;
    ASSERT_EQ(cuda_.cuMemHostAlloc(&memory, 64, 0), 0);
    word_ = static_cast<std::uint32_t*>(memory);
    __atomic_store_n(word_, 0u, __ATOMIC_RELEASE);
    g_launches = 0;
    g_held_by = nullptr;
    table_.cuLaunchKernel = [](cu::function_t kernel, unsigned gx, unsigned gy, unsigned gz, unsigned block_x,
                               unsigned block_y, unsigned block_z, unsigned shared, cu::stream_t stream, void** parameters,
                               void** extra) {
      const auto& real = test::simulated_cuda();
      const bool is_sum = shared == copy::checksum::kSharedBytes;  // not the resident engine's
      g_launches += is_sum ? 1 : 0;
      if (auto* const word = is_sum ? g_held_by.load() : nullptr) {
        EXPECT_EQ(real.cuStreamWaitValue32_v2(stream, copy::address_of(word), 1, cu::wait_value::eq), 0);
      }
      return real.cuLaunchKernel(kernel, gx, gy, gz, block_x, block_y, block_z, shared, stream, parameters, extra);
    };
    rig_.start();
    auto opened = copy::planner::open(table_, copy::planner::options_from_environment());
    ASSERT_TRUE(opened) << opened.error().message;
    copies_ = *std::move(opened);
    auto options = rig_.over_unix();
    options.copies = copies_.get();
    options.cuda = &table_;
    options.gpu_checksum = true;
    store_ = store_rig::open(options);
    ASSERT_NE(store_, nullptr);
    pool_ = make_pool(*store_, "p");
  }
  void TearDown() override {
    __atomic_store_n(word_, 1u, __ATOMIC_RELEASE);
    store_.reset();
    copies_.reset();
    EXPECT_EQ(cuda_.cuMemFreeHost(word_), 0);
  }
  void put_and_check(std::uint64_t address, const std::vector<unsigned char>& value) {
    test::set_device_bytes(address, value);
    auto source = store_->classify(address, value.size());
    ASSERT_TRUE(source && source->device);
    const auto reply = store_->run(store_->make_put(pool_, "k", *source, at_level(durability::durable)));
    ASSERT_EQ(reply.status, 0) << reply.text;
    EXPECT_EQ(reply.result.way, path::shm_direct);
    std::vector<unsigned char> back(value.size());
    store_client::get_request verified;
    verified.verify = true;  // the store compares the value with the checksum that it was told
    auto destination = store_->classify(copy::address_of(back.data()), back.size());
    ASSERT_TRUE(destination);
    const auto got = store_->run(store_->make_get(pool_, "k", *destination, verified));
    ASSERT_EQ(got.status, 0) << got.text;
    EXPECT_EQ(back, value);
  }

  const cu::driver_table& cuda_ = test::simulated_cuda();
  cu::driver_table table_ = cuda_;
  const test::current_device current_{0};
  std::uint32_t* word_ = nullptr;
  store_rig rig_;
  std::unique_ptr<copy::planner> copies_;
  std::unique_ptr<store_client::client> store_;
  std::uint32_t pool_ = 0;
};

TEST_F(store_gpu_sum, IsTheGpusWhereTheMemoryIsAligned) {
  for (const std::size_t bytes : {2u << 20, (3u << 20) + 5}) {
    const test::device_buffer memory(bytes + 8);
    EXPECT_EQ(cuda_.cuCtxSynchronize(), 0);  // the kernel of the turn before, if a busy machine gave it up
    const int before = g_launches;
    put_and_check(memory.pointer(), test::random_bytes(bytes, static_cast<unsigned>(bytes)));
    EXPECT_EQ(g_launches, before + 1) << bytes;
    put_and_check(memory.pointer(), test::random_bytes(1 << 20, 1));
    EXPECT_EQ(g_launches, before + 1) << "short ones are quicker summed here";
    put_and_check(memory.pointer() + 8, test::random_bytes(bytes, 2));
    EXPECT_EQ(g_launches, before + 1) << "the kernel reads 16 bytes at a time: the CPU sums these";
  }
}

TEST_F(store_gpu_sum, IsTheCpusWhereTheKernelIsKeptWaiting) {
  constexpr std::size_t kBytes = 3 << 20;
  const test::device_buffer memory(kBytes);
  put_and_check(memory.pointer(), test::random_bytes(kBytes, 1));
  EXPECT_EQ(cuda_.cuCtxSynchronize(), 0);  // given up or not: on a busy machine it may have been
  g_held_by = word_;
  put_and_check(memory.pointer(), test::random_bytes(kBytes, 2));
  EXPECT_EQ(g_launches, 2);
  put_and_check(memory.pointer(), test::random_bytes(kBytes, 3));
  EXPECT_EQ(g_launches, 2) << "the one before has still to pass";
  g_held_by = nullptr;
  __atomic_store_n(word_, 1u, __ATOMIC_RELEASE);
  EXPECT_EQ(cuda_.cuCtxSynchronize(), 0);
  put_and_check(memory.pointer(), test::random_bytes(kBytes, 4));
  EXPECT_EQ(g_launches, 3);
}

}  // namespace
}  // namespace pl::store_test
