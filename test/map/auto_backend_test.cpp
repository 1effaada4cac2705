// SPDX-License-Identifier: Apache-2.0
// The automatic choice: a backend that opens but cannot pin is left for the next, for reasons of its own only. Method: one
// kernel that is resource manager and gdrdrv module at once, and copies of the simulated driver's table that answer
// otherwise.
#include "map/auto_backend.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "map/registry.hpp"
#include "test/support/fake_gdrdrv.hpp"
#include "test/support/fake_rm.hpp"
#include "test/support/sim_fixture.hpp"

namespace pl::test {
namespace {

// Both drivers; mapping of dma-bufs may be refused as kernels do.
class whole_kernel final : public device_io {
 public:
  fake_rm rm;
  fake_gdrdrv module;
  bool has_module = false;
  int dma_buf_refusal = 0;  // errno of mmap

  int open(const char* path, int flags) override {
    if (std::strcmp(path, "/dev/gdrdrv") != 0) return rm.open(path, flags);
    if (!has_module) return errno = ENOENT, -1;
    const int fd = module.open(path, flags);
    module_fd_ = fd;
    return fd;
  }
  int close(int fd) override { return fd == module_fd_ ? module.close(fd) : rm.close(fd); }
  int ioctl(int fd, unsigned long request, void* argument) override {
    return fd == module_fd_ ? module.ioctl(fd, request, argument) : rm.ioctl(fd, request, argument);
  }
  void* mmap(void* address, std::size_t bytes, int protection, int flags, int fd, off_t offset) override {
    if (fd >= 0 && fd == module_fd_) return module.mmap(address, bytes, protection, flags, fd, offset);
    char link[64], name[128] = {};
    std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const bool is_dma_buf = readlink(link, name, sizeof name - 1) > 0 && std::strstr(name, "peerlane-sim") != nullptr;
    if (is_dma_buf && dma_buf_refusal != 0) return errno = dma_buf_refusal, MAP_FAILED;
    return rm.mmap(address, bytes, protection, flags, fd, offset);
  }
  int munmap(void* address, std::size_t bytes) override { return module.munmap(address, bytes); }
  int madvise(void* address, std::size_t bytes, int advice) override { return rm.madvise(address, bytes, advice); }
  result<std::string> read_text(const char* path) override { return rm.read_text(path); }

 private:
  int module_fd_ = -1;
};

int g_dma_buf_mmap = 1, g_coherent = 0, g_exports_refused = 0;
cu::result_t attribute(int* value, int attribute, cu::device_t device) {
  const auto rc = simulated_cuda().cuDeviceGetAttribute(value, attribute, device);
  if (attribute == cu::device_attribute::dma_buf_mmap) *value = g_dma_buf_mmap;
  if (attribute == cu::device_attribute::pageable_memory_access_uses_host_page_tables) *value = g_coherent;
  return rc;
}
cu::result_t older_attribute(int* value, int attribute, cu::device_t device) {
  if (attribute == cu::device_attribute::dma_buf_mmap) return cu::error_code::invalid_value;
  return simulated_cuda().cuDeviceGetAttribute(value, attribute, device);
}
cu::result_t not_initialized(int*) { return cu::error_code::not_initialized; }
cu::result_t refused_export(void* handle, std::uint64_t pointer, std::size_t bytes, int type, unsigned long long flags) {
  // The objects are announced all the same, which is all that the resource manager's listener needs.
  if (simulated_cuda().cuMemGetHandleForAddressRange(handle, pointer, bytes, type, flags) == cu::error_code::success)
    close(*static_cast<int*>(handle));
  return ++g_exports_refused, cu::error_code::invalid_value;
}

class auto_backend : public testing::Test {
 protected:
  void SetUp() override {
    g_dma_buf_mmap = 1, g_coherent = 0, g_exports_refused = 0;
    table_ = simulated_cuda();
    table_.cuDeviceGetAttribute = attribute;
    context_ = std::make_unique<current_device>();
    memory_ = std::make_unique<device_buffer>(4 << 20);
  }
  void TearDown() override {
    EXPECT_EQ(kernel_.rm.live_clients() + kernel_.rm.live_mappings(), 0);
    EXPECT_EQ(kernel_.module.live_pins(), 0);
  }
  session* open(const char* name = "auto") {
    auto opened = open_session({&kernel_, &table_}, name);
    EXPECT_TRUE(opened) << (opened ? "" : opened.error().message);
    return opened ? *opened : nullptr;
  }
  result<region*> map(session* s, bool force_pcie = false) {
    pin_request request;
    request.range = {memory_->pointer(), 65536};
    request.force_pcie = force_pcie;
    return pin_and_map_region(s, request);
  }
  // Maps through a fresh automatic session: the name of who made it, and bytes that went through it.
  std::string maker() {
    session* s = open();
    if (s == nullptr) return "none";
    auto mapped = map(s);
    std::string name = mapped ? (*mapped)->pin->backend_name() : mapped.error().message;
    if (mapped) {
      EXPECT_EQ(region_write(*mapped, (*mapped)->data.load(), name.c_str(), name.size(), true), 0);
      EXPECT_EQ(std::memcmp(device_bytes(memory_->pointer(), name.size()).data(), name.data(), name.size()), 0);
      EXPECT_STREQ(s->owner->name(), name.c_str()) << "the session tells another backend than the mapping";
    }
    EXPECT_TRUE(close_session(s));
    return name;
  }

  whole_kernel kernel_;
  cu::driver_table table_;
  std::unique_ptr<current_device> context_;
  std::unique_ptr<device_buffer> memory_;
};

TEST_F(auto_backend, TakesTheFirstThatWorks) {
  EXPECT_EQ(maker(), "dmabuf");
  kernel_.has_module = true;
  EXPECT_EQ(maker(), "gdrdrv");
}

TEST_F(auto_backend, AsksTheDeviceWhetherItsDmaBufsCanBeMapped) {
  g_dma_buf_mmap = 0;
  EXPECT_EQ(maker(), "rm");
  auto named = open_session({&kernel_, &table_}, "dmabuf");
  ASSERT_FALSE(named) << "the driver's version alone says nothing";
  EXPECT_EQ(named.code(), ENOTSUP);
  EXPECT_NE(named.error().message.find("device attribute 152"), std::string::npos) << named.error().message;
  table_.cuDeviceGetAttribute = older_attribute;
  EXPECT_EQ(maker(), "rm") << "a driver that does not know the attribute";
}

TEST_F(auto_backend, AsksAtTheFirstPinWhereCudaWasNotInitialisedBefore) {
  g_dma_buf_mmap = 0;
  table_.cuDeviceGetCount = not_initialized;
  session* named = open("dmabuf");
  auto refused = map(named);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.code(), ENOTSUP);
  EXPECT_TRUE(close_session(named));
  EXPECT_EQ(maker(), "rm");
}

TEST_F(auto_backend, GoesOnWhereTheKernelDoesNotMapDmaBufs) {
  for (const int code : {524, ENODEV, EPERM, EINVAL}) {
    kernel_.dma_buf_refusal = code;
    session* named = open("dmabuf");
    auto refused = map(named);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.code(), ENOTSUP) << refused.error().message;
    EXPECT_NE(refused.error().message.find("cannot be mapped"), std::string::npos);
    EXPECT_TRUE(close_session(named));
    EXPECT_EQ(maker(), "rm") << code;
  }
}

TEST_F(auto_backend, GoesOnWhereTheExportIsRefused) {
  table_.cuMemGetHandleForAddressRange = refused_export;  // as drivers that refuse a platform with INVALID_VALUE
  EXPECT_EQ(maker(), "rm");
  EXPECT_GT(g_exports_refused, 1) << "the first backend was not asked";
}

TEST_F(auto_backend, GoesOnWhereTheModuleRefusesTheGpu) {
  kernel_.has_module = true;
  for (const int code : {EINVAL, 524, EIO, ENODEV}) {
    kernel_.module.refuse_pins(code);
    EXPECT_EQ(maker(), "dmabuf") << code;
  }
  g_dma_buf_mmap = 0;
  EXPECT_EQ(maker(), "rm");
}

TEST_F(auto_backend, RequestErrorsAndSharedShortagesDoNotTryTheNextBackend) {
  kernel_.has_module = true;
  session* s = open();
  const int clients = kernel_.rm.live_clients();
  pin_request beyond;
  beyond.range = {memory_->pointer(), (4 << 20) + 1};
  EXPECT_EQ(pin_region(s, beyond).code(), EINVAL);
  kernel_.module.refuse_pins(ENOMEM);
  auto full = map(s);
  EXPECT_EQ(full.code(), ENOMEM);
  EXPECT_NE(full.error().message.find("BAR1"), std::string::npos) << full.error().message;
  EXPECT_EQ(kernel_.rm.live_clients(), clients) << "the next backend was opened for nothing";
  EXPECT_TRUE(close_session(s));
}

TEST_F(auto_backend, GivesEveryReasonWhereNoneCan) {
  g_dma_buf_mmap = 0;
  table_.cuDeviceGetCount = not_initialized;
  kernel_.rm.settings().no_driver = true;
  session* s = open();
  auto refused = map(s);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("dmabuf: "), std::string::npos) << refused.error().message;
  EXPECT_NE(refused.error().message.find("rm: no NVIDIA kernel driver answers"), std::string::npos);
  EXPECT_TRUE(close_session(s));
}

TEST_F(auto_backend, ABackendThatKeepsRefusingIsNoLongerTried) {
  table_.cuDeviceGetCount = not_initialized;
  g_dma_buf_mmap = 0;
  session* s = open();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(map(s));
  g_dma_buf_mmap = 1;
  auto mapped = map(s);
  ASSERT_TRUE(mapped);
  EXPECT_STREQ((*mapped)->pin->backend_name(), "rm");
  EXPECT_TRUE(close_session(s));
}

TEST_F(auto_backend, CoherentPlatformsHaveCachedMappings) {
  g_coherent = 1;
  session* s = open("dmabuf");
  auto cached = map(s);
  ASSERT_TRUE(cached) << cached.error().message;
  EXPECT_EQ((*cached)->type.load(), arch::mapping_type::cached);
  auto through_bar1 = map(s, true);
  ASSERT_TRUE(through_bar1);
  EXPECT_EQ((*through_bar1)->type.load(), arch::mapping_type::wc);
  pin_request request;
  request.range = {memory_->pointer(), 65536};
  auto pinned = pin_region(s, request);
  ASSERT_TRUE(pinned);
  EXPECT_EQ(map_region(s, *pinned, 65536, arch::mapping_type::wc).code(), EOPNOTSUPP);
  EXPECT_TRUE(map_region(s, *pinned, 65536, arch::mapping_type::cached));
  EXPECT_TRUE(close_session(s));
}

}  // namespace
}  // namespace pl::test
