// SPDX-License-Identifier: Apache-2.0
// Listening to an export: every layout that libcuda has used is understood, everything else in the process stays as it was.
// Method: a fake libcuda (fake_libcuda.cpp) whose export announces two known objects through its imported ioctl.
#include "rm/export_listener.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>

namespace pl::rm {
namespace {

struct fake_cuda {
  explicit fake_cuda(const char* path) {
    table.library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (table.library == nullptr) return;
    table.cuMemGetHandleForAddressRange =
        reinterpret_cast<decltype(table.cuMemGetHandleForAddressRange)>(dlsym(table.library, "fake_export"));
    layout = static_cast<int*>(dlsym(table.library, "fake_layout"));
    ioctl = reinterpret_cast<int (*)(int, unsigned long, void*)>(dlsym(table.library, "fake_ioctl"));
    *layout = 0;
  }
  cu::driver_table table;
  int* layout = nullptr;
  int (*ioctl)(int, unsigned long, void*) = nullptr;
};

constexpr std::uint64_t kAt = 0x7f0000000000, kBytes = 0x200000;

void expect_both_objects(const fake_cuda& cuda, std::uint64_t bytes = kBytes) {
  auto pieces = find_backing(cuda.table, kAt, bytes);
  ASSERT_TRUE(pieces) << pieces.error().message;
  ASSERT_EQ(pieces->size(), 2u);
  EXPECT_EQ((*pieces)[0].client, 0xc1d00007u);
  EXPECT_EQ((*pieces)[0].object, 0x5c000010u);
  EXPECT_EQ((*pieces)[0].offset, 0x3000u);
  EXPECT_EQ((*pieces)[0].size_bytes, 0x1000u);
  EXPECT_EQ((*pieces)[1].object, 0x5c000011u);
  EXPECT_EQ((*pieces)[1].size_bytes, bytes - 0x1000);
}

class export_listener : public testing::TestWithParam<const char*> {};

TEST_P(export_listener, EveryLayout) {
  const fake_cuda cuda(GetParam());
  ASSERT_NE(cuda.layout, nullptr) << dlerror();
  for (const int layout : {0, 1, 2, 0}) {
    SCOPED_TRACE(layout);
    *cuda.layout = layout;
    expect_both_objects(cuda);
  }
}

TEST_P(export_listener, ACallThatASignalInterruptedCountsOnce) {
  const fake_cuda cuda(GetParam());
  ASSERT_NE(cuda.layout, nullptr);
  *cuda.layout = 5;
  expect_both_objects(cuda);
}

TEST_P(export_listener, ManyObjectsInSeveralCalls) {
  const fake_cuda cuda(GetParam());
  ASSERT_NE(cuda.layout, nullptr);
  *cuda.layout = 6;
  auto pieces = find_backing(cuda.table, kAt, 300 * 65536);
  ASSERT_TRUE(pieces) << pieces.error().message;
  ASSERT_EQ(pieces->size(), 300u);
  for (unsigned i = 0; i < 300; ++i) EXPECT_EQ((*pieces)[i].object, 0x5c000010u + i);
}

TEST_P(export_listener, WhatItDoesNotUnderstandIsRefused) {
  const fake_cuda cuda(GetParam());
  ASSERT_NE(cuda.layout, nullptr);
  *cuda.layout = 4;
  auto pieces = find_backing(cuda.table, kAt, kBytes);
  ASSERT_FALSE(pieces);
  EXPECT_EQ(pieces.code(), ENOTSUP);
  EXPECT_NE(pieces.error().message.find("its ABI has changed"), std::string::npos) << pieces.error().message;
  *cuda.layout = 3;
  pieces = find_backing(cuda.table, kAt, kBytes);
  ASSERT_FALSE(pieces);
  EXPECT_EQ(pieces.code(), EINVAL) << "CUDA's own reason: " << pieces.error().message;
}

TEST_P(export_listener, OtherIoctlsPassUntouched) {
  const fake_cuda cuda(GetParam());
  ASSERT_NE(cuda.layout, nullptr);
  expect_both_objects(cuda);
  int pipe_ends[2], waiting = -1;
  ASSERT_EQ(pipe(pipe_ends), 0);
  ASSERT_EQ(write(pipe_ends[1], "12345", 5), 5);
  EXPECT_EQ(cuda.ioctl(pipe_ends[0], FIONREAD, &waiting), 0);
  EXPECT_EQ(waiting, 5);
  errno = 0;
  EXPECT_EQ(cuda.ioctl(pipe_ends[0], ioctl_request(esc_export_dma_buf, sizeof(export_dma_buf_params)), nullptr), -1);
  EXPECT_EQ(errno, ENOTTY) << "the kernel's answer, unchanged";
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

// Other threads announce objects of their own all the time: none may appear in a listener's list, all must get through.
TEST_P(export_listener, ThreadsHearOnlyThemselves) {
  const fake_cuda cuda(GetParam());
  ASSERT_NE(cuda.layout, nullptr);
  expect_both_objects(cuda);
  std::atomic<bool> stop{false};
  std::atomic<int> strange{0}, passed{0};
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i) {
    others.emplace_back([&] {
      export_dma_buf_params noise{};
      noise.client = 0xbad;
      noise.object_count = 3;
      while (!stop.load()) {
        errno = 0;
        const int rc = cuda.ioctl(-1, ioctl_request(esc_export_dma_buf, sizeof noise), &noise);
        strange += rc != -1 || errno != EBADF;
        ++passed;
      }
    });
  }
  for (int round = 0; round < 3000 || passed.load() < 100; ++round) {
    auto pieces = find_backing(cuda.table, kAt, kBytes);
    if (!pieces || pieces->size() != 2 || (*pieces)[0].client != 0xc1d00007u) ++strange;
  }
  stop = true;
  for (auto& other : others) other.join();
  EXPECT_EQ(strange.load(), 0);
}

INSTANTIATE_TEST_SUITE_P(binding, export_listener, testing::Values(PL_FAKE_LAZY, PL_FAKE_RELRO),
                         [](const auto& one) { return one.index == 0 ? "lazy" : "relro"; });

TEST(export_listener_install, GoingBackToALibraryDoesNotHookOurOwnHook) {
  const fake_cuda lazy(PL_FAKE_LAZY), bound(PL_FAKE_RELRO);
  ASSERT_TRUE(lazy.layout != nullptr && bound.layout != nullptr);
  expect_both_objects(lazy);
  expect_both_objects(bound);
  expect_both_objects(lazy);  // a hook that leads to itself would never return
  expect_both_objects(bound, 0x40000);
}

TEST(export_listener_install, ALibraryWithoutTheImportIsRefused) {
  cu::driver_table libc;
  libc.library = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(libc.library, nullptr);
  libc.cuMemGetHandleForAddressRange = [](void*, cu::device_ptr, std::size_t, int, unsigned long long) { return 0; };
  const auto pieces = find_backing(libc, kAt, kBytes);
  ASSERT_FALSE(pieces);
  EXPECT_EQ(pieces.code(), ENOTSUP);
  EXPECT_NE(pieces.error().message.find("cannot be observed"), std::string::npos) << pieces.error().message;
}

TEST(export_listener_install, ADriverWithoutTheExportCallIsRefused) {
  const cu::driver_table nothing;
  const auto pieces = find_backing(nothing, kAt, kBytes);
  ASSERT_FALSE(pieces);
  EXPECT_NE(pieces.error().message.find("CUDA 11.7 or newer"), std::string::npos);
}

}  // namespace
}  // namespace pl::rm
