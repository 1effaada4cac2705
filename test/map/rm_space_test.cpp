// SPDX-License-Identifier: Apache-2.0
// The rm backend's second way to an object (VMM export) and its cache. Method: a copy of the simulated driver's table with
// the export call taken out, or counted; bytes prove which memory was mapped.
#include "map/rm_space.hpp"

#include <gtest/gtest.h>

#include "map/registry.hpp"
#include "test/support/fake_rm.hpp"
#include "test/support/sim_fixture.hpp"

namespace pl::test {
namespace {

int g_exports = 0;
cu::result_t counted_export(void* handle, cu::device_ptr pointer, std::size_t bytes, int type, unsigned long long flags) {
  ++g_exports;
  return simulated_cuda().cuMemGetHandleForAddressRange(handle, pointer, bytes, type, flags);
}

int g_strict_calls = 0;
cu::result_t watched_retain(cu::physical_t* handle, void* pointer) {
  int mode = cu::capture_mode::relaxed;
  simulated_cuda().cuThreadExchangeStreamCaptureMode(&mode);
  g_strict_calls += mode != cu::capture_mode::relaxed;
  simulated_cuda().cuThreadExchangeStreamCaptureMode(&mode);
  return simulated_cuda().cuMemRetainAllocationHandle(handle, pointer);
}

class rm_space_test : public testing::Test {
 protected:
  void SetUp() override {
    table_ = simulated_cuda();
    context_ = std::make_unique<current_device>();
  }
  session* open() {
    auto opened = open_session({&kernel_, &table_}, "rm");
    EXPECT_TRUE(opened) << (opened ? "" : opened.error().message);
    return opened ? *opened : nullptr;
  }
  static result<region*> map(session* s, std::uint64_t pointer, std::uint64_t bytes) {
    pin_request request;
    request.range = {pointer, bytes};
    auto pinned = pin_region(s, request);
    if (!pinned) return pinned;
    if (auto mapped = map_region_exactly(s, *pinned); !mapped) return mapped.error();
    return pinned;
  }

  fake_rm kernel_;
  cu::driver_table table_;
  std::unique_ptr<current_device> context_;
};

TEST_F(rm_space_test, ExportableVmmMemoryIsReachedWithoutTheListener) {
  table_.cuMemGetHandleForAddressRange = nullptr;  // as a libcuda before 11.7
  session* s = open();
  const vmm_buffer buffer({2 << 20, 2 << 20}, cu::handle_type::posix_fd);
  const std::uint64_t address = buffer.pointer() + (2 << 20) - 50;  // over the border of the pieces
  auto mapped = map(s, address, 100);
  ASSERT_TRUE(mapped) << mapped.error().message;
  const auto bytes = random_bytes(100, 1);
  ASSERT_EQ(region_write(*mapped, (*mapped)->data.load(), bytes.data(), 100, true), 0);
  EXPECT_EQ(device_bytes(address, 100), bytes);
  EXPECT_TRUE(close_session(s));
  EXPECT_EQ(kernel_.live_objects() + kernel_.live_mappings() + kernel_.live_clients(), 0);
}

TEST_F(rm_space_test, TheSecondWayEndsNoCaptureEither) {
  table_.cuMemGetHandleForAddressRange = nullptr;
  table_.cuMemRetainAllocationHandle = watched_retain;
  session* s = open();
  const vmm_buffer buffer({2 << 20}, cu::handle_type::posix_fd);
  g_strict_calls = 0;
  EXPECT_TRUE(map(s, buffer.pointer(), 64));
  EXPECT_EQ(g_strict_calls, 0) << "CUDA was called in a mode in which that can end a capture";
  EXPECT_TRUE(close_session(s));
}

TEST_F(rm_space_test, WhereBothWaysFailTheFirstReasonIsGiven) {
  table_.cuMemGetHandleForAddressRange = nullptr;
  session* s = open();
  const device_buffer buffer(1 << 20);  // not VMM memory
  auto mapped = map(s, buffer.pointer(), 64);
  ASSERT_FALSE(mapped);
  EXPECT_EQ(mapped.code(), ENOTSUP);
  EXPECT_NE(mapped.error().message.find("cuMemGetHandleForAddressRange"), std::string::npos) << mapped.error().message;
  EXPECT_TRUE(close_session(s));
}

TEST_F(rm_space_test, AnAllocationIsAskedForOnceWhileAPinOfItLives) {
  table_.cuMemGetHandleForAddressRange = counted_export;
  session* s = open();
  const device_buffer buffer(8 << 20);
  g_exports = 0;
  auto first = map(s, buffer.pointer(), 4096);
  ASSERT_TRUE(first);
  EXPECT_EQ(g_exports, 1);
  auto second = map(s, buffer.pointer() + (5 << 20) + 7, 100);
  ASSERT_TRUE(second);
  EXPECT_EQ(g_exports, 1) << "the second pin asked libcuda again";
  const auto bytes = random_bytes(100, 2);
  ASSERT_EQ(region_write(*second, (*second)->data.load(), bytes.data(), 100, true), 0);
  EXPECT_EQ(device_bytes(buffer.pointer() + (5 << 20) + 7, 100), bytes);
  EXPECT_TRUE(unpin_region(s, *first));
  EXPECT_TRUE(unpin_region(s, *second));
  auto third = map(s, buffer.pointer(), 4096);
  ASSERT_TRUE(third);
  EXPECT_EQ(g_exports, 2) << "something was kept after the last pin: it would hold freed memory";
  EXPECT_TRUE(close_session(s));
}

TEST_F(rm_space_test, SessionsShareOneClient) {
  session* a = open();
  session* b = open();
  EXPECT_EQ(kernel_.live_clients(), 1);
  EXPECT_TRUE(close_session(a));
  EXPECT_EQ(kernel_.live_clients(), 1);
  EXPECT_TRUE(close_session(b));
  EXPECT_EQ(kernel_.live_clients(), 0);
}

}  // namespace
}  // namespace pl::test
