// SPDX-License-Identifier: Apache-2.0
// Sizes and offsets of each driver branch, as its published headers have them (docs/results/dma/layouts.txt).
#include <gtest/gtest.h>

#include "rm/channel_abi.hpp"

namespace {

using pl::rm::channel_layout_of;

TEST(channel_layout, EachBranchThatWasRead) {
  struct expected {
    const char* version;
    unsigned address_space, memory, channel, schedule, map, map_address, map_status, unmap, class_room, gpu_info,
        confidential, peer_link;
  };
  constexpr expected kReleases[] = {{"535.43.02", 48, 120, 304, 2, 56, 40, 48, 40, 160, 516, 5, 72},
                                    {"535.54.03", 48, 120, 304, 2, 56, 40, 48, 40, 160, 516, 5, 72},
                                    {"535.43.08", 48, 120, 360, 2, 56, 40, 48, 40, 160, 516, 5, 72},
                                    {"535.98", 48, 120, 360, 2, 56, 40, 48, 40, 160, 516, 5, 72},
                                    {"535.288.01", 48, 120, 360, 2, 56, 40, 48, 40, 160, 516, 5, 72},
                                    {"545.29.06", 48, 128, 360, 2, 56, 40, 48, 40, 160, 524, 5, 72},
                                    {"550.90.12", 48, 128, 360, 2, 56, 40, 48, 48, 174, 524, 6, 72},
                                    {"555.58.02", 48, 128, 360, 2, 56, 40, 48, 48, 100, 524, 6, 72},
                                    {"560.35.03", 48, 128, 360, 2, 56, 40, 48, 48, 100, 524, 6, 72},
                                    {"565.77", 48, 128, 360, 2, 56, 40, 48, 48, 100, 524, 6, 72},
                                    {"570.172.08", 48, 128, 368, 2, 56, 40, 48, 48, 100, 524, 6, 72},
                                    {"575.64.05", 48, 128, 368, 3, 56, 40, 48, 48, 100, 532, 6, 72},
                                    {"580.159.04", 56, 128, 368, 3, 64, 48, 56, 48, 200, 564, 6, 72},
                                    {"590.48.01", 56, 128, 368, 3, 64, 48, 56, 48, 200, 564, 6, 88},
                                    {"595.45.04", 56, 128, 368, 3, 64, 48, 56, 48, 200, 564, 6, 88}};
  for (const expected& release : kReleases) {
    SCOPED_TRACE(release.version);
    const auto* layout = channel_layout_of(release.version);
    ASSERT_NE(layout, nullptr);
    EXPECT_EQ(layout->address_space_bytes, release.address_space);
    EXPECT_EQ(layout->device_memory_bytes, release.memory);
    EXPECT_EQ(layout->channel_bytes, release.channel);
    EXPECT_EQ(layout->schedule_bytes, release.schedule);
    EXPECT_EQ(layout->map_dma_bytes, release.map);
    EXPECT_EQ(layout->map_dma_address, release.map_address);
    EXPECT_EQ(layout->map_dma_status, release.map_status);
    EXPECT_EQ(layout->unmap_dma_bytes, release.unmap);
    EXPECT_EQ(layout->class_room, release.class_room);
    EXPECT_EQ(layout->gpu_info_bytes, release.gpu_info);
    EXPECT_EQ(layout->confidential_bytes, release.confidential);
    EXPECT_EQ(layout->peer_link_bytes, release.peer_link);
  }
}

TEST(channel_layout, OthersAreNotGuessed) {
  for (const char* version : {"", "unknown", "525.60", "540.1", "585.1", "600.10", "5800.1", "58", "580x", ".580", "-580.1"})
    EXPECT_EQ(channel_layout_of(version), nullptr) << version;
}

// Blocks are declared as the longest branch has them and sent as long as each branch wants them.
TEST(channel_layout, NoBlockIsLongerThanItsDeclaration) {
  using namespace pl::rm;
  const auto check = [](const channel_layout& layout) {
    SCOPED_TRACE(layout.branch);
    EXPECT_LE(layout.address_space_bytes, sizeof(address_space_params));
    EXPECT_LE(layout.device_memory_bytes, sizeof(device_memory_params));
    EXPECT_LE(layout.channel_bytes, sizeof(channel_params));
    EXPECT_LE(layout.schedule_bytes, sizeof(schedule_params));
    EXPECT_LE(layout.map_dma_bytes, kMaxMapDmaBytes);
    EXPECT_LE(layout.map_dma_address + sizeof(std::uint64_t), layout.map_dma_bytes);
    EXPECT_LE(layout.map_dma_status + sizeof(std::uint32_t), layout.map_dma_bytes);
    EXPECT_GE(layout.unmap_dma_bytes, sizeof(unmap_dma_head));
    EXPECT_LE(layout.unmap_dma_bytes, kMaxMapDmaBytes);
    EXPECT_LE(layout.class_room, kMaxClassRoom);
    EXPECT_LE(layout.gpu_info_bytes, sizeof(gpu_info_params));
    EXPECT_EQ(layout.gpu_info_bytes % sizeof(gpu_info_entry), sizeof(std::uint32_t));
    EXPECT_LE(layout.confidential_bytes, sizeof(confidential_params));
    EXPECT_LE(layout.peer_link_bytes, sizeof(peer_link_params));
  };
  check(kFirst535Layout);
  for (const auto& layout : kChannelLayouts) check(layout);
}

}  // namespace
