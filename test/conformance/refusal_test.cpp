// SPDX-License-Identifier: Apache-2.0
// Bad input, one sentence each: the message must name the trouble, and nothing may change.
#include "test/conformance/backends.hpp"

namespace pl::test {
namespace {

class refusal : public backend_test {
 protected:
  void expect_refused(session* s, const pin_request& request, int code, const char* words) {
    auto pinned = pin_region(s, request);
    ASSERT_FALSE(pinned) << words;
    EXPECT_EQ(pinned.code(), code) << pinned.error().message;
    EXPECT_NE(pinned.error().message.find(words), std::string::npos)
        << "\"" << words << "\" is not in: " << pinned.error().message;
  }
};

// With gdrdrv the module's own page checks decide about granules.
class granule_refusal : public refusal {};

TEST_P(refusal, WhatCannotBePinned) {
  session* s = open();
  const auto& cuda = simulated_cuda();
  device_buffer buffer(4 << 20);
  const std::uint64_t p = buffer.pointer();
  expect_refused(s, exactly(p, 0), EINVAL, "size is 0");
  expect_refused(s, exactly(0, 64), EINVAL, "address");
  expect_refused(s, exactly(p, (4 << 20) + 1), EINVAL, "leaves its allocation");
  expect_refused(s, exactly(p + (4 << 20), 1), EINVAL, "not CUDA memory");
  expect_refused(s, exactly(UINT64_MAX - 10, 100), EINVAL, "overflow");
  int on_stack = 0;
  expect_refused(s, exactly(reinterpret_cast<std::uint64_t>(&on_stack), 4), EINVAL, "plain host memory");
  void* pinned_host = nullptr;
  ASSERT_EQ(cuda.cuMemHostAlloc(&pinned_host, 8192, 0), 0);
  expect_refused(s, exactly(reinterpret_cast<std::uint64_t>(pinned_host), 64), EINVAL, "is host memory");
  cuda.cuMemFreeHost(pinned_host);
  std::uint64_t managed = 0;
  ASSERT_EQ(cuda.cuMemAllocManaged(&managed, 8192, 1), 0);
  expect_refused(s, exactly(managed, 64), EINVAL, "managed memory");
  cuda.cuMemFree_v2(managed);
  buffer.free_now();
  expect_refused(s, exactly(p, 64), EINVAL, "freed");
  EXPECT_TRUE(close_session(s));
}

TEST_P(granule_refusal, WhatCannotBePinnedInGranules) {
  session* s = open();
  device_buffer buffer(4 << 20);
  const std::uint64_t p = buffer.pointer();
  expect_refused(s, in_granules(p, 0), EINVAL, "size is 0");
  expect_refused(s, in_granules(0, 64), EINVAL, "address is 0");
  expect_refused(s, in_granules(p, (4 << 20) + kGpuPageBytes + 1), EINVAL, "leaves its allocation");
  buffer.free_now();
  expect_refused(s, in_granules(p, 64), EINVAL, "freed");
  EXPECT_TRUE(close_session(s));
}

TEST_P(refusal, HolesBehindVmmMemory) {
  session* s = open();
  const vmm_buffer buffer({2 << 20});
  expect_refused(s, exactly(buffer.pointer(), (2 << 20) + 1), EINVAL, "leaves its allocation");
  expect_refused(s, exactly(buffer.pointer() + (2 << 20), 1), EINVAL, "not CUDA memory");
  EXPECT_TRUE(close_session(s));
}

TEST_P(refusal, StaleAndForeignHandles) {
  session* a = open();
  session* b = open();
  const device_buffer buffer(1 << 20);
  region* r = map_exactly(a, buffer.pointer(), 4096);
  ASSERT_NE(r, nullptr);
  char* data = r->data.load();
  EXPECT_EQ(unpin_region(b, r).code(), EINVAL) << "pinned with another session";
  EXPECT_EQ(unmap_region(b, r).code(), EINVAL);
  EXPECT_EQ(map_region(b, r, 4096, arch::mapping_type::none).code(), EINVAL);
  session copy_like_gdrcopys_test_program;  // a byte copy of a session, at another address
  EXPECT_EQ(check_session(&copy_like_gdrcopys_test_program), EINVAL);
  for (const std::uintptr_t bits : {std::uintptr_t{0}, std::uintptr_t{1}, reinterpret_cast<std::uintptr_t>(r) + 8,
                                    ~std::uintptr_t{0}, std::uintptr_t{0xdeadbeef000}}) {
    auto* bogus = reinterpret_cast<region*>(bits);
    EXPECT_EQ(check_region(bogus), EINVAL);
    EXPECT_EQ(unpin_region(a, bogus).code(), EINVAL);
    EXPECT_EQ(region_write(bogus, data, "x", 1, true), EINVAL);
    EXPECT_EQ(check_session(reinterpret_cast<session*>(bits)), EINVAL);
  }
  EXPECT_TRUE(unpin_region(a, r));
  EXPECT_EQ(unpin_region(a, r).code(), EINVAL) << "double unpin";
  EXPECT_EQ(region_write(r, data, "x", 1, true), EINVAL) << "use after unpin";
  EXPECT_TRUE(close_session(a));
  EXPECT_EQ(close_session(a).code(), EINVAL) << "double close";
  EXPECT_EQ(pin_region(a, exactly(buffer.pointer(), 64)).code(), EINVAL) << "use after close";
  EXPECT_TRUE(close_session(b));
}

TEST_P(refusal, StaleHandlesStayDeadThroughReuse) {
  session* s = open();
  const device_buffer buffer(1 << 20);
  auto first = pin_region(s, exactly(buffer.pointer(), 64));
  ASSERT_TRUE(first);
  ASSERT_TRUE(unpin_region(s, *first));
  for (int i = 0; i < 1000; ++i) {
    auto next = pin_region(s, exactly(buffer.pointer(), 64));
    ASSERT_TRUE(next);
    ASSERT_NE(*next, *first) << "a released handle was given out again after " << i << " pins";
    ASSERT_TRUE(unpin_region(s, *next));
  }
  EXPECT_EQ(unpin_region(s, *first).code(), EINVAL);
  EXPECT_TRUE(close_session(s));
}

INSTANTIATE_TEST_SUITE_P(backends, granule_refusal, testing::ValuesIn(granule_backends()), label_of);
INSTANTIATE_TEST_SUITE_P(backends, refusal, testing::ValuesIn(all_backends()), label_of);

}  // namespace
}  // namespace pl::test
