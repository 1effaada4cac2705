// SPDX-License-Identifier: Apache-2.0
// The mapping cache when a step fails, at every step, and when memory or mappings change under it.
#include <atomic>
#include <functional>
#include <utility>

#include "gdrdrv_ioctl.h"
#include "test/copy/mapping_cache_fixture.hpp"

namespace pl::copy {
namespace {

using test::comes_true;
using test::find;
using test::kMiB;
using test::two_slots;
using test::without_sweep;

class MappingCacheFailure : public test::mapping_cache_test {};
INSTANTIATE_TEST_SUITE_P(backends, MappingCacheFailure, testing::ValuesIn(test::kMappingBackends), test::backend_name);

TEST_P(MappingCacheFailure, ARefusalIsRememberedForTheObjectOnly) {
  mapping_cache cache(without_sweep(backend()));
  const test::device_buffer fine(2 * kMiB), refused(2 * kMiB);
  ASSERT_TRUE(find(cache, fine.pointer(), 8));  // the backend is open
  kernel.io().fail_at(0, EPERM);
  const auto first = find(cache, refused.pointer(), 8);
  EXPECT_TRUE(kernel.io().fired());
  ASSERT_EQ(first.code(), EPERM) << first.error().message;
  kernel.io().fail_at(0, EIO);
  const auto second = find(cache, refused.pointer() + 4096, 8);
  EXPECT_FALSE(kernel.io().fired()) << "the kernel was asked again";
  kernel.io().fail_at(-1, 0);
  EXPECT_EQ(second.code(), EPERM);
  EXPECT_EQ(second.error().message, first.error().message);
  EXPECT_EQ(cache.counts().refused, 1u);
  const test::device_buffer other(2 * kMiB);
  EXPECT_TRUE(find(cache, other.pointer(), 8));
  cache.trim(true);
  EXPECT_TRUE(find(cache, refused.pointer(), 8));
}

TEST_P(MappingCacheFailure, ARefusalThatMayPassIsForgottenSoon) {
  mapping_cache cache(without_sweep(backend()));
  const test::device_buffer fine(2 * kMiB), buffer(2 * kMiB);
  ASSERT_TRUE(find(cache, fine.pointer(), 8));
  kernel.io().fail_at(0, EIO);
  EXPECT_FALSE(find(cache, buffer.pointer(), 8));
  kernel.io().fail_at(-1, 0);
  EXPECT_TRUE(comes_true([&] { return find(cache, buffer.pointer(), 8).ok(); }));
}

TEST_P(MappingCacheFailure, WhenTheKernelHasNoRoomUnusedMappingsMakeSome) {
  mapping_cache cache(without_sweep(backend()));
  const test::device_buffer a(2 * kMiB), b(2 * kMiB);
  ASSERT_TRUE(find(cache, a.pointer(), 8));
  kernel.io().fail_at(0, ENOMEM);
  EXPECT_TRUE(find(cache, b.pointer(), 8));
  EXPECT_TRUE(kernel.io().fired());
  EXPECT_EQ(cache.counts().entries, 1u);
}

TEST_P(MappingCacheFailure, EveryFailingStepLeavesNothingAndTheNextCallWorks) {
  const test::device_buffer buffer(2 * kMiB);
  constexpr int kMaxSteps = 100;
  int step = 0;
  for (bool fired = true; fired && step < kMaxSteps; ++step) {
    mapping_cache cache(without_sweep(backend()));
    kernel.io().fail_at(step, EIO);
    const auto got = find(cache, buffer.pointer(), 64);
    fired = kernel.io().fired();
    kernel.io().fail_at(-1, 0);
    if (!got) {
      EXPECT_TRUE(fired);
      EXPECT_FALSE(got.error().message.empty());
      EXPECT_EQ(cache.counts().mapped_bytes, 0u);
      kernel.expect_nothing_mapped();
      cache.trim(true);
      EXPECT_TRUE(find(cache, buffer.pointer(), 64)) << "after step " << step;
    } else if (!fired) {
      EXPECT_TRUE(got) << got.error().message;
    }
  }
  EXPECT_GT(step, 1);
  EXPECT_LT(step, kMaxSteps);
}

// The memory changes between the driver's answer and the mapping.
class remapping_io final : public device_io {
 public:
  explicit remapping_io(device_io& next) : next_(next) {}
  std::function<void()> at_mmap;
  int open(const char* path, int flags) override { return next_.open(path, flags); }
  int close(int fd) override { return next_.close(fd); }
  int ioctl(int fd, unsigned long request, void* argument) override { return next_.ioctl(fd, request, argument); }
  void* mmap(void* address, std::size_t bytes, int protection, int flags, int fd, off_t offset) override {
    if (at_mmap) std::exchange(at_mmap, nullptr)();
    return next_.mmap(address, bytes, protection, flags, fd, offset);
  }
  int munmap(void* address, std::size_t bytes) override { return next_.munmap(address, bytes); }
  int madvise(void* address, std::size_t bytes, int advice) override { return next_.madvise(address, bytes, advice); }
  result<std::string> read_text(const char* path) override { return next_.read_text(path); }

 private:
  device_io& next_;
};

TEST_P(MappingCacheFailure, MemoryThatIsRemappedWhileItIsMappedIsAnErrorAndLeavesNoEntry) {
  remapping_io io(kernel.io());
  set_default_device_io_for_tests(&io);
  {
    mapping_cache cache(without_sweep(backend()));
    const two_slots slots;
    slots.map(0, slots.base, 4 * kMiB);
    io.at_mmap = [&] {
      slots.unmap(slots.base, 4 * kMiB);
      slots.map(1, slots.base, 4 * kMiB);
    };
    EXPECT_EQ(find(cache, slots.base, 8).code(), EAGAIN);
    EXPECT_EQ(cache.counts().mapped_bytes, 0u);
    kernel.expect_nothing_mapped();
    auto hold = find(cache, slots.base, 8);
    ASSERT_TRUE(hold) << "remembered";
    std::memcpy(hold->data, "the new", 8);
    EXPECT_EQ(std::memcmp(test::device_bytes(slots.base, 8).data(), "the new", 8), 0);
    slots.unmap(slots.base, 4 * kMiB);
  }
  set_default_device_io_for_tests(nullptr);
}

// ---- What only one backend can show

TEST(MappingCacheFailureAlone, ABackendThatDoesNotOpenSaysWhyAndIsTriedAgain) {
  const test::current_device context(0);
  test::mapping_kernel kernel("rm");
  mapping_cache cache(without_sweep("rm"));
  const test::device_buffer buffer(4096);
  kernel.as_rm()->settings().no_driver = true;
  const auto first = find(cache, buffer.pointer(), 8);
  ASSERT_FALSE(first);
  kernel.as_rm()->settings().no_driver = false;
  const auto second = find(cache, buffer.pointer(), 8);
  EXPECT_EQ(second.code(), first.code());
  cache.trim(true);
  EXPECT_TRUE(find(cache, buffer.pointer(), 8));
}

// A module without persistent mappings takes them away when the memory is unmapped, and the same memory may come back.
class revoking_io final : public device_io {
 public:
  explicit revoking_io(device_io& next) : next_(next) {}
  std::atomic<bool> is_revoked{false};
  int open(const char* path, int flags) override { return next_.open(path, flags); }
  int close(int fd) override { return next_.close(fd); }
  int ioctl(int fd, unsigned long request, void* argument) override {
    const int rc = next_.ioctl(fd, request, argument);
    if (rc == 0 && request == GDRDRV_IOC_GET_CB_FLAG)
      static_cast<gdrdrv_get_cb_flag*>(argument)->flag = is_revoked.exchange(false) ? 1 : 0;
    return rc;
  }
  void* mmap(void* address, std::size_t bytes, int protection, int flags, int fd, off_t offset) override {
    return next_.mmap(address, bytes, protection, flags, fd, offset);
  }
  int munmap(void* address, std::size_t bytes) override { return next_.munmap(address, bytes); }
  int madvise(void* address, std::size_t bytes, int advice) override { return next_.madvise(address, bytes, advice); }
  result<std::string> read_text(const char* path) override { return next_.read_text(path); }

 private:
  device_io& next_;
};

TEST(MappingCacheFailureAlone, ARevokedMappingIsMadeAnew) {
  const test::current_device context(0);
  test::mapping_kernel kernel("gdrdrv");
  revoking_io io(kernel.io());
  set_default_device_io_for_tests(&io);
  {
    mapping_cache cache(without_sweep("gdrdrv"));
    const test::device_buffer buffer(2 * kMiB);
    ASSERT_TRUE(find(cache, buffer.pointer(), 8));
    ASSERT_TRUE(find(cache, buffer.pointer(), 8));
    EXPECT_EQ(cache.counts().misses, 1u);
    io.is_revoked = true;
    ASSERT_TRUE(find(cache, buffer.pointer(), 8));
    EXPECT_EQ(cache.counts().misses, 2u);
    EXPECT_EQ(cache.counts().entries, 1u);
  }
}

}  // namespace
}  // namespace pl::copy
