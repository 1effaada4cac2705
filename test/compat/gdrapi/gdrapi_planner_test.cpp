// SPDX-License-Identifier: Apache-2.0
// GDRCopy's copies with PEERLANE_GDRAPI_PLANNER=1: the same bytes in the same memory as by stores and loads.
#include <gdrapi.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "test/support/sim_fixture.hpp"

namespace pl::test {
namespace {

constexpr std::size_t kBytes = 1 << 20;
using bytes = std::vector<unsigned char>;

class gdrapi_planner : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(session_ = gdr_open(), nullptr) << gdr_last_error(); }
  void TearDown() override { EXPECT_EQ(gdr_close(session_), 0); }
  char* map(std::uint64_t device, gdr_mh_t& handle) {
    void* mapped = nullptr;
    EXPECT_EQ(gdr_pin_buffer(session_, device, kBytes, 0, 0, &handle), 0) << gdr_last_error();
    EXPECT_EQ(gdr_map(session_, handle, &mapped, kBytes), 0) << gdr_last_error();
    return static_cast<char*>(mapped);
  }
  current_device device_;
  gdr_t session_ = nullptr;
};

TEST_F(gdrapi_planner, CopiesBothWaysAndLeavesErrnoAlone) {
  const device_buffer device(kBytes);
  gdr_mh_t handle{};
  char* const mapped = map(device.pointer(), handle);
  for (const std::size_t size : {std::size_t{4096}, std::size_t{70'000}, kBytes - 100}) {
    const auto given = random_bytes(size, static_cast<unsigned>(size));
    bytes back(size);
    errno = EXDEV;
    EXPECT_EQ(gdr_copy_to_mapping(handle, mapped + 100, given.data(), size), 0);
    EXPECT_EQ(errno, EXDEV);
    EXPECT_EQ(gdr_copy_from_mapping(handle, back.data(), mapped + 100, size), 0);
    EXPECT_EQ(errno, EXDEV);
    EXPECT_EQ(back, given);
    EXPECT_EQ(device_bytes(device.pointer() + 100, size), given);
  }
}

// The memory stays behind its mapping, but its device addresses soon are another allocation's.
TEST_F(gdrapi_planner, FreedMemoryIsReachedAndNotItsSuccessor) {
  const auto& cuda = simulated_cuda();
  std::uint64_t first = 0, second = 0;
  ASSERT_EQ(cuda.cuMemAlloc_v2(&first, kBytes), cu::error_code::success);
  gdr_mh_t handle{};
  char* const mapped = map(first, handle);
  const bytes written(kBytes, 1), other(kBytes, 2);
  ASSERT_EQ(gdr_copy_to_mapping(handle, mapped, other.data(), kBytes), 0);  // the planner knows the memory
  ASSERT_EQ(cuda.cuMemFree_v2(first), cu::error_code::success);
  ASSERT_EQ(cuda.cuMemAlloc_v2(&second, kBytes), cu::error_code::success);
  ASSERT_EQ(second, first) << "the simulator no longer gives out the address again: adapt the test";
  set_device_bytes(second, other);

  EXPECT_EQ(gdr_copy_to_mapping(handle, mapped, written.data(), kBytes), 0);
  EXPECT_EQ(device_bytes(second, kBytes), other) << "written to the new allocation";
  bytes back(kBytes);
  EXPECT_EQ(gdr_copy_from_mapping(handle, back.data(), mapped, kBytes), 0);
  EXPECT_EQ(back, written) << "read from the new allocation";
  EXPECT_EQ(cuda.cuMemFree_v2(second), cu::error_code::success);
}

}  // namespace
}  // namespace pl::test
