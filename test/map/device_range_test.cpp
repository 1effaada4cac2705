// SPDX-License-Identifier: Apache-2.0
// plan_pin: what is rounded, what is cut, and how far a request may reach. Refusals with their words are in
// test/conformance.
#include "map/device_range.hpp"

#include <gtest/gtest.h>

#include <set>

#include "test/support/sim_fixture.hpp"

namespace pl::test {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

class device_range_test : public testing::Test {
 protected:
  const cu::driver_table& cuda_ = simulated_cuda();
  current_device context_;
};

TEST_F(device_range_test, RoundsToTheGranule) {
  const device_buffer buffer(4 * kMiB);
  auto plan = plan_pin(cuda_, {buffer.pointer() + 5000, 100}, kHostPageBytes, range_rule::exact);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->requested.begin, buffer.pointer() + 5000);
  EXPECT_EQ(plan->rounded.begin, buffer.pointer() + 4096);
  EXPECT_EQ(plan->rounded.size_bytes, 4096u);
  ASSERT_EQ(plan->pieces.size(), 1u);
  EXPECT_EQ(plan->pieces[0].range.begin, plan->rounded.begin);
  EXPECT_NE(plan->pieces[0].block_id, 0u);
  EXPECT_EQ(plan->device_ordinal, 0);
}

TEST_F(device_range_test, CutsAtObjectBorders) {
  const vmm_buffer buffer({2 * kMiB, 4 * kMiB, 2 * kMiB});
  auto plan = plan_pin(cuda_, {buffer.pointer() + kMiB, 6 * kMiB}, kHostPageBytes, range_rule::exact);
  ASSERT_TRUE(plan) << plan.error().message;
  ASSERT_EQ(plan->pieces.size(), 3u);
  std::uint64_t address = plan->rounded.begin;
  std::set<unsigned long long> blocks;
  for (const auto& piece : plan->pieces) {
    EXPECT_EQ(piece.range.begin, address);
    EXPECT_GE(piece.range.begin, piece.object_begin);
    address += piece.range.size_bytes;
    blocks.insert(piece.block_id);
  }
  EXPECT_EQ(address, plan->rounded.end());
  EXPECT_EQ(blocks.size(), 3u);
}

TEST_F(device_range_test, SmallAllocationsMayRoundIntoTheirBlock) {
  const device_buffer neighbour(256), buffer(256);
  auto plan = plan_pin(cuda_, {buffer.pointer(), 256}, kGpuPageBytes, range_rule::granule);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->rounded.size_bytes % kGpuPageBytes, 0u);
  EXPECT_TRUE(plan->rounded.contains({buffer.pointer(), 256}));
  EXPECT_FALSE(plan_pin(cuda_, {buffer.pointer(), 257}, kHostPageBytes, range_rule::exact)) << "exact requests may not";
}

TEST_F(device_range_test, SeveralGpusAreSeveralMappings) {
  // One reservation, its halves on two devices.
  std::uint64_t base = 0;
  ASSERT_EQ(cuda_.cuMemAddressReserve(&base, 4 * kMiB, 0, 0, 0), 0);
  cu::physical_t pieces[2] = {};
  for (int device = 0; device < 2; ++device) {
    cu::allocation_prop prop{};
    prop.type = cu::allocation_type::pinned;
    prop.location = {cu::location_type::device, device};
    ASSERT_EQ(cuda_.cuMemCreate(&pieces[device], 2 * kMiB, &prop, 0), 0);
    const std::uint64_t address = base + static_cast<std::uint64_t>(device) * 2 * kMiB;
    ASSERT_EQ(cuda_.cuMemMap(address, 2 * kMiB, 0, pieces[device], 0), 0);
    const cu::access_desc access{{cu::location_type::device, 0}, cu::access_flags::read_write};
    ASSERT_EQ(cuda_.cuMemSetAccess(address, 2 * kMiB, &access, 1), 0);
  }
  auto plan = plan_pin(cuda_, {base + kMiB, 2 * kMiB}, kHostPageBytes, range_rule::exact);
  ASSERT_FALSE(plan);
  EXPECT_NE(plan.error().message.find("several GPUs"), std::string::npos) << plan.error().message;
  EXPECT_TRUE(plan_pin(cuda_, {base + 2 * kMiB, 2 * kMiB}, kHostPageBytes, range_rule::exact));
  cuda_.cuMemUnmap(base, 4 * kMiB);
  for (const auto piece : pieces) cuda_.cuMemRelease(piece);
  cuda_.cuMemAddressFree(base, 4 * kMiB);
}

}  // namespace
}  // namespace pl::test
