// SPDX-License-Identifier: Apache-2.0
#include "copy/gpu_context.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "copy/pinned_buffer.hpp"
#include "test/support/sim_fixture.hpp"

namespace pl::copy {
namespace {

TEST(GpuContext, ThePrimaryContextServesMemoryWithoutAnOwner) {
  const auto& cuda = test::simulated_cuda();
  auto found = find_context(cuda, 1, nullptr);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_TRUE(found->is_alive());
  auto again = find_context(cuda, 1, nullptr);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->handle, found->handle);
}

TEST(GpuContext, ADestroyedContextIsNotAlive) {
  const auto& cuda = test::simulated_cuda();
  cu::context_t own = nullptr;
  ASSERT_EQ(cuda.cuCtxCreate_v2(&own, 0, 0), 0);
  auto found = find_context(cuda, 0, own);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->is_alive());
  ASSERT_EQ(cuda.cuCtxDestroy_v2(own), 0);
  EXPECT_FALSE(found->is_alive());
  EXPECT_FALSE(context_use::enter(*found));
}

TEST(GpuContext, UsePutsBackTheCurrentContextAndTheCaptureMode) {
  const auto& cuda = test::simulated_cuda();
  const test::current_device current(0);
  cu::context_t before = nullptr;
  ASSERT_EQ(cuda.cuCtxGetCurrent(&before), 0);
  auto other = find_context(cuda, 1, nullptr);
  ASSERT_TRUE(other);
  {
    auto use = context_use::enter(*other);
    ASSERT_TRUE(use);
    cu::context_t now = nullptr;
    ASSERT_EQ(cuda.cuCtxGetCurrent(&now), 0);
    EXPECT_EQ(now, other->handle);
  }
  cu::context_t after = nullptr;
  ASSERT_EQ(cuda.cuCtxGetCurrent(&after), 0);
  EXPECT_EQ(after, before);
  int mode = cu::capture_mode::global;
  ASSERT_EQ(cuda.cuThreadExchangeStreamCaptureMode(&mode), 0);
  EXPECT_EQ(mode, cu::capture_mode::global);
}

TEST(PinnedBuffer, OutlivesItsContext) {
  const auto& cuda = test::simulated_cuda();
  cu::context_t own = nullptr;
  ASSERT_EQ(cuda.cuCtxCreate_v2(&own, 0, 0), 0);
  auto found = find_context(cuda, 0, own);
  ASSERT_TRUE(found);
  auto made = pinned_buffer::make(*found, 10000);
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(made->size_bytes(), 12288u);
  ASSERT_EQ(cuda.cuCtxDestroy_v2(own), 0);
  std::memset(made->data(), 1, made->size_bytes());  // still memory
}

TEST(PinnedBuffer, IsSeenByTheGpu) {
  const auto& cuda = test::simulated_cuda();
  const test::current_device current(0);
  auto context = find_context(cuda, 0, nullptr);
  ASSERT_TRUE(context);
  auto made = pinned_buffer::make(*context, 4096);
  ASSERT_TRUE(made);
  ASSERT_EQ(cuda.cuMemsetD8_v2(made->device_address(), 0x5A, 4096), 0);
  ASSERT_EQ(cuda.cuCtxSynchronize(), 0);
  EXPECT_EQ(std::to_integer<int>(made->data()[4095]), 0x5A);
}

}  // namespace
}  // namespace pl::copy
