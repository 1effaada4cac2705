// SPDX-License-Identifier: Apache-2.0
// Memory that another process made, mapped by its IPC handle. Method: a forked child that only waits holds the same
// descriptors, so a handle that names its pid opens as one of another process; the simulated driver refuses to export such
// memory, as the real one is taken to do.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "map/registry.hpp"
#include "test/support/fake_rm.hpp"
#include "test/support/sim_fixture.hpp"

namespace pl::test {
namespace {

class ipc_memory : public testing::Test {
 protected:
  static constexpr std::size_t kBytes = 1 << 20;

  void SetUp() override {
    context_ = std::make_unique<current_device>();
    exported_ = std::make_unique<device_buffer>(kBytes);
    other_ = std::make_unique<device_buffer>(4 << 20);
    set_device_bytes(exported_->pointer(), random_bytes(kBytes, 1));
    set_device_bytes(other_->pointer(), random_bytes(kBytes, 2));
    child_ = fork();
    ASSERT_GE(child_, 0);
    if (child_ == 0) {
      for (;;) pause();
    }
    handle_ = handle_of(exported_->pointer());
    ASSERT_EQ(cuda_.cuIpcOpenMemHandle_v2(&imported_, handle_, 1), 0);
    ASSERT_NE(imported_, exported_->pointer());
    auto opened = open_session({&kernel_, &cuda_}, "rm");
    ASSERT_TRUE(opened);
    session_ = *opened;
  }
  void TearDown() override {
    EXPECT_TRUE(close_session(session_));
    EXPECT_EQ(kernel_.live_objects() + kernel_.live_mappings() + kernel_.live_clients(), 0);
    EXPECT_EQ(cuda_.cuIpcCloseMemHandle(imported_), 0);
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  // As the child would have made it.
  cu::ipc_mem_handle_t handle_of(std::uint64_t pointer) const {
    cu::ipc_mem_handle_t handle{};
    EXPECT_EQ(cuda_.cuIpcGetMemHandle(&handle, pointer), 0);
    const auto pid = static_cast<std::uint64_t>(child_);
    std::memcpy(handle.reserved + 8, &pid, sizeof pid);
    return handle;
  }
  result<region*> map(const cu::ipc_mem_handle_t* handle, bool verify = false, std::uint64_t offset = 4099) {
    pin_request request;
    request.range = {imported_ + offset, 10'000};
    request.ipc_handle = handle;
    request.verify = verify;
    return pin_and_map_region(session_, request);
  }
  void expect_refused(const result<region*>& outcome, int code, const char* words) {
    ASSERT_FALSE(outcome) << "mapped, though: " << words;
    EXPECT_EQ(outcome.code(), code) << outcome.error().message;
    EXPECT_NE(outcome.error().message.find(words), std::string::npos) << outcome.error().message;
    EXPECT_EQ(kernel_.live_mappings(), 0) << "the refused mapping stays";
  }

  const cu::driver_table& cuda_ = simulated_cuda();
  fake_rm kernel_;
  std::unique_ptr<current_device> context_;
  std::unique_ptr<device_buffer> exported_, other_;
  pid_t child_ = -1;
  cu::ipc_mem_handle_t handle_{};
  std::uint64_t imported_ = 0;
  session* session_ = nullptr;
};

TEST_F(ipc_memory, IsMappedByItsHandle) {
  auto mapped = map(&handle_);
  ASSERT_TRUE(mapped) << mapped.error().message;
  const auto bytes = random_bytes(10'000, 3);
  ASSERT_EQ(region_write(*mapped, (*mapped)->data.load(), bytes.data(), bytes.size(), true), 0);
  EXPECT_EQ(device_bytes(exported_->pointer() + 4099, bytes.size()), bytes) << "the exporter does not see it";
}

TEST_F(ipc_memory, IsRefusedWithoutItsHandle) { expect_refused(map(nullptr), EINVAL, "peerlane_map_ipc"); }

TEST_F(ipc_memory, AHandleOfOtherMemoryIsFoundOut) {
  // Of the same kind and size; only the bytes tell.
  const device_buffer twin(kBytes);
  set_device_bytes(twin.pointer(), random_bytes(kBytes, 4));
  const auto before = device_bytes(twin.pointer(), kBytes);
  const auto handle = handle_of(twin.pointer());
  cu::ipc_mem_handle_t mixed = handle_;
  std::memcpy(mixed.reserved + 48, handle.reserved + 48, 8);
  expect_refused(map(&mixed), EIO, "does not show the memory it should");
  expect_refused(map(&mixed, true), EIO, "does not show the memory it should");
  EXPECT_EQ(device_bytes(twin.pointer(), kBytes), before);
}

TEST_F(ipc_memory, BytesThatAreNoHandleAreRefused) {
  const cu::ipc_mem_handle_t nothing{};
  expect_refused(map(&nothing), EINVAL, "not the 64 bytes of a CUDA IPC memory handle");
  const auto larger = handle_of(other_->pointer());
  expect_refused(map(&larger), EINVAL, "with which it was opened");
  cu::ipc_mem_handle_t gone = handle_;
  gone.reserved[53] = static_cast<char>(gone.reserved[53] ^ 0x55);
  expect_refused(map(&gone), ENOENT, "sharing CUDA's memory object failed");
}

TEST_F(ipc_memory, WhatProvesNothingIsRefusedUnlessANonceMayBeWritten) {
  set_device_bytes(exported_->pointer(), std::vector<unsigned char>(kBytes, 0));
  expect_refused(map(&handle_), EAGAIN, "PEERLANE_MAP_VERIFY");
  auto mapped = map(&handle_, true);
  ASSERT_TRUE(mapped) << mapped.error().message;
  EXPECT_EQ(device_bytes(exported_->pointer(), kBytes), std::vector<unsigned char>(kBytes, 0)) << "the nonce stays";
}

}  // namespace
}  // namespace pl::test
