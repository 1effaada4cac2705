// SPDX-License-Identifier: Apache-2.0
// Sizes and offsets of each driver branch, as its published headers have them.
#include <gtest/gtest.h>

#include "rm/channel_abi.hpp"

namespace {

using pl::rm::channel_layout_of;

TEST(channel_layout, EachBranchThatWasRead) {
  struct expected {
    const char* version;
    unsigned address_space, memory, channel, schedule, map, map_status, unmap, class_room;
  };
  constexpr expected kBranches[] = {
      {"535.98", 48, 120, 360, 2, 56, 48, 40, 160},     {"550.90.12", 48, 128, 360, 2, 56, 48, 48, 174},
      {"570.172.08", 48, 128, 368, 2, 56, 48, 48, 100}, {"580.159.04", 56, 128, 368, 3, 64, 56, 48, 200},
      {"590.48.01", 56, 128, 368, 3, 64, 56, 48, 200},  {"595.45.04", 56, 128, 368, 3, 64, 56, 48, 200}};
  for (const expected& branch : kBranches) {
    SCOPED_TRACE(branch.version);
    const auto* layout = channel_layout_of(branch.version);
    ASSERT_NE(layout, nullptr);
    EXPECT_EQ(layout->address_space_bytes, branch.address_space);
    EXPECT_EQ(layout->device_memory_bytes, branch.memory);
    EXPECT_EQ(layout->channel_bytes, branch.channel);
    EXPECT_EQ(layout->schedule_bytes, branch.schedule);
    EXPECT_EQ(layout->map_dma_bytes, branch.map);
    EXPECT_EQ(layout->map_dma_status, branch.map_status);
    EXPECT_EQ(layout->unmap_dma_bytes, branch.unmap);
    EXPECT_EQ(layout->class_room, branch.class_room);
  }
}

TEST(channel_layout, OthersAreNotGuessed) {
  for (const char* version : {"", "unknown", "525.60", "545.23", "560.35", "575.64", "585.1", "600.10", "5800.1"})
    EXPECT_EQ(channel_layout_of(version), nullptr) << version;
}

}  // namespace
