// SPDX-License-Identifier: Apache-2.0
// Limits of the process that a mapping can run into: each is an error with its number, leaves nothing behind, and is gone
// with its cause. And contexts that go away beneath a mapping.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "map/registry.hpp"
#include "test/support/counting_io.hpp"
#include "test/support/fake_rm.hpp"
#include "test/support/sim_fixture.hpp"

namespace pl::test {
namespace {

// A soft limit for the length of a scope.
class scoped_limit {
 public:
  scoped_limit(int resource, rlim_t soft) : resource_(resource) {
    getrlimit(which_as_type(), &before_);
    const rlimit lower{soft, before_.rlim_max};
    is_set_ = setrlimit(which_as_type(), &lower) == 0;
  }
  ~scoped_limit() { setrlimit(which_as_type(), &before_); }
  scoped_limit(const scoped_limit&) = delete;
  scoped_limit& operator=(const scoped_limit&) = delete;
  bool is_set() const { return is_set_; }

 private:
  __rlimit_resource_t which_as_type() const { return static_cast<__rlimit_resource_t>(resource_); }
  int resource_;
  rlimit before_{};
  bool is_set_ = false;
};

rlim_t address_space_bytes() {
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  return pages * 4096;
}

class limits : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    context_ = std::make_unique<current_device>();
    if (std::string(GetParam()) == "rm") kernel_ = std::make_unique<fake_rm>();
    io_ = std::make_unique<counting_io>(kernel_ ? *kernel_ : real_device_io());
    memory_ = std::make_unique<device_buffer>(64 << 20);
    session_ = open();
    ASSERT_NE(session_, nullptr);
    ASSERT_TRUE(map_all());  // what is made once is made
    ASSERT_TRUE(close_session(session_));
    session_ = open();
  }
  void TearDown() override {
    EXPECT_TRUE(close_session(session_));
    EXPECT_EQ(io_->open_descriptors(), 0);
    EXPECT_EQ(io_->mapped_bytes(), 0u);
  }
  session* open() {
    auto opened = open_session({io_.get(), &simulated_cuda()}, GetParam());
    EXPECT_TRUE(opened);
    return opened ? *opened : nullptr;
  }
  result<region*> map_all() {
    pin_request request;
    request.range = {memory_->pointer(), memory_->bytes()};
    return pin_and_map_region(session_, request);
  }
  void expect_works() {
    auto mapped = map_all();
    ASSERT_TRUE(mapped) << mapped.error().message;
    EXPECT_EQ(region_write(*mapped, (*mapped)->data.load(), "here", 4, true), 0);
    EXPECT_EQ(std::memcmp(device_bytes(memory_->pointer(), 4).data(), "here", 4), 0);
    EXPECT_TRUE(unpin_region(session_, *mapped, unmapping::by_request));
    EXPECT_EQ(io_->mapped_bytes(), 0u);
  }

  std::unique_ptr<current_device> context_;
  std::unique_ptr<device_io> kernel_;
  std::unique_ptr<counting_io> io_;
  std::unique_ptr<device_buffer> memory_;
  session* session_ = nullptr;
};

TEST_P(limits, NoAddressesLeft) {
  {
    const scoped_limit few(RLIMIT_AS, address_space_bytes() + (8 << 20));
    ASSERT_TRUE(few.is_set());
    auto mapped = map_all();
    ASSERT_FALSE(mapped);
    EXPECT_EQ(mapped.code(), ENOMEM) << mapped.error().message;
    EXPECT_EQ(io_->mapped_bytes(), 0u);
  }
  expect_works();
}

TEST_P(limits, NoDescriptorLeft) {
  {
    const int next = dup(0);
    close(next);
    const scoped_limit none(RLIMIT_NOFILE, static_cast<rlim_t>(next));
    ASSERT_TRUE(none.is_set());
    auto mapped = map_all();
    ASSERT_FALSE(mapped);
    EXPECT_FALSE(mapped.error().message.empty());
    EXPECT_EQ(io_->mapped_bytes(), 0u);
  }
  expect_works();
}

TEST_P(limits, NothingIsLocked) {
  const scoped_limit none(RLIMIT_MEMLOCK, 0);
  ASSERT_TRUE(none.is_set());
  expect_works();
}

TEST_P(limits, AMappingOutlivesItsContext) {
  const auto& cuda = simulated_cuda();
  cu::context_t own = nullptr, before = nullptr;
  std::uint64_t pointer = 0;
  ASSERT_EQ(cuda.cuCtxGetCurrent(&before), 0);
  ASSERT_EQ(cuda.cuCtxCreate_v2(&own, 0, 0), 0);
  ASSERT_EQ(cuda.cuMemAlloc_v2(&pointer, 1 << 20), 0);
  ASSERT_EQ(cuda.cuMemcpyHtoD_v2(pointer, "kept", 4), 0);
  pin_request request;
  request.range = {pointer, 65536};
  auto mapped = pin_and_map_region(session_, request);
  auto pinned = pin_region(session_, request);
  ASSERT_TRUE(mapped && pinned);
  ASSERT_EQ(cuda.cuCtxDestroy_v2(own), 0);
  ASSERT_EQ(cuda.cuCtxSetCurrent(before), 0);
  char seen[4] = {};
  EXPECT_EQ(region_read(*mapped, seen, (*mapped)->data.load(), 4), 0);
  EXPECT_EQ(std::memcmp(seen, "kept", 4), 0);
  EXPECT_TRUE(map_region(session_, *pinned, 65536, arch::mapping_type::none)) << "a pin is a pin, mapped or not";
  EXPECT_EQ(pin_region(session_, request).code(), EINVAL) << "the memory is gone for new pins";
  EXPECT_TRUE(unpin_region(session_, *pinned, unmapping::by_request));
  EXPECT_TRUE(unpin_region(session_, *mapped, unmapping::by_request));
  expect_works();
}

INSTANTIATE_TEST_SUITE_P(backends, limits, testing::Values("dmabuf", "rm"),
                         [](const auto& one) { return std::string(one.param); });

}  // namespace
}  // namespace pl::test
