// SPDX-License-Identifier: Apache-2.0
#include "copy/gpu_checksum.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "arch/crc32c.hpp"
#include "copy/planner.hpp"
#include "test/copy/copy_fixture.hpp"

namespace pl::copy {
namespace {

using namespace std::chrono_literals;

class GpuChecksum : public testing::Test {
 protected:
  static std::optional<std::uint32_t> wait(gpu_checksum::job& job) {
    const auto end = std::chrono::steady_clock::now() + 20s;
    while (std::chrono::steady_clock::now() < end) {
      if (const auto sum = job.test()) return sum;
      std::this_thread::yield();
    }
    return {};
  }
  const cu::driver_table& cuda_ = test::simulated_cuda();
  const test::current_device current_{0};
  const gpu_context context_ = context_of(0, cuda_);
};

TEST_F(GpuChecksum, IsTheCpus) {
  auto checksum = gpu_checksum::open(context_);
  ASSERT_TRUE(checksum) << checksum.error().message;
  for (const std::size_t bytes : {1u, 15u, 16u, 17u, 4095u, 4096u, 4097u, 8192u, 70'001u, 1'100'000u}) {
    guarded_device device(bytes);
    ASSERT_EQ(device.address() % gpu_checksum::kAlignment, 0u);
    const auto data = test::random_bytes(bytes, static_cast<unsigned>(bytes));
    device.set(data);
    auto job = (*checksum)->begin(device.address(), bytes, nullptr, false);
    ASSERT_TRUE(job) << job.error().message;
    const auto sum = wait(*job);
    ASSERT_TRUE(sum.has_value());
    EXPECT_EQ(*sum, arch::crc32c(data.data(), bytes)) << bytes;
    EXPECT_FALSE(job->is_there());
  }
}

TEST_F(GpuChecksum, ComesAfterTheApplicationsStreamAndGivesUpBeforeIt) {
  auto checksum = gpu_checksum::open(context_);
  ASSERT_TRUE(checksum) << checksum.error().message;
  constexpr std::size_t kBytes = 64 << 10;
  guarded_device device(kBytes);
  const auto data = test::random_bytes(kBytes, 1);
  device.set(data);
  gate held;
  auto job = (*checksum)->begin(device.address(), kBytes, held.stream(), true);
  ASSERT_TRUE(job) << job.error().message;
  std::this_thread::sleep_for(5ms);
  EXPECT_FALSE(job->test().has_value()) << "the stream is still held";
  EXPECT_EQ((*checksum)->begin(device.address(), kBytes, nullptr, false).code(), EBUSY);
  job->give_up();  // returns at once: no block has begun
  EXPECT_FALSE(job->is_there());
  EXPECT_EQ((*checksum)->begin(device.address(), kBytes, nullptr, false).code(), EBUSY) << "its kernel has still to pass";
  held.open();
  const auto end = std::chrono::steady_clock::now() + 20s;
  auto next = (*checksum)->begin(device.address(), kBytes, nullptr, false);
  while (!next && std::chrono::steady_clock::now() < end)
    next = (*checksum)->begin(device.address(), kBytes, nullptr, false);
  ASSERT_TRUE(next) << next.error().message;
  EXPECT_EQ(wait(*next), arch::crc32c(data.data(), kBytes));
}

// Freed right after giving up: a kernel that still read it would fault, which the context would tell for ever.
TEST_F(GpuChecksum, MemoryMayBeFreedOnceItWasGivenUp) {
  auto checksum = gpu_checksum::open(context_);
  ASSERT_TRUE(checksum) << checksum.error().message;
  constexpr std::size_t kBytes = 2 << 20;
  for (int round = 0; round < 30; ++round) {
    cu::device_ptr memory = 0;
    ASSERT_EQ(cuda_.cuMemAlloc_v2(&memory, kBytes), 0);
    auto job = (*checksum)->begin(memory, kBytes, nullptr, false);
    if (job) {
      std::this_thread::sleep_for(std::chrono::microseconds(round * 20));
      job->give_up();
    } else {
      EXPECT_EQ(job.code(), EBUSY);
    }
    ASSERT_EQ(cuda_.cuMemFree_v2(memory), 0);
  }
  EXPECT_EQ(cuda_.cuCtxSynchronize(), 0) << "a kernel read memory that was freed";
}

TEST_F(GpuChecksum, RefusesWhatItCannotSum) {
  auto checksum = gpu_checksum::open(context_);
  ASSERT_TRUE(checksum) << checksum.error().message;
  guarded_device device(4096);
  EXPECT_EQ((*checksum)->begin(device.address() / 16 * 16 + 8, 64, nullptr, false).code(), EINVAL);
  EXPECT_EQ((*checksum)->begin(device.address() / 16 * 16, 0, nullptr, false).code(), EINVAL);
  EXPECT_EQ((*checksum)->begin(device.address() / 16 * 16, gpu_checksum::kMaxBytes + 1, nullptr, false).code(), EINVAL);
  cu::driver_table without_write = cuda_;
  without_write.cuStreamWriteValue32_v2 = nullptr;
  EXPECT_EQ(gpu_checksum::open(context_of(0, without_write)).code(), ENOTSUP);
}

}  // namespace
}  // namespace pl::copy
