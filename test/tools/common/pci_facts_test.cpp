// SPDX-License-Identifier: Apache-2.0
#include "tools/common/pci_facts.hpp"

#include <gtest/gtest.h>

namespace pl::tools {
namespace {

// Region 0: 16 MiB registers, region 1 (64-bit): BAR1, region 3: 32 MiB; then the ROM line, which must not count.
constexpr const char* kOlderBoard =
    "0x00000000f6000000 0x00000000f6ffffff 0x0000000000040200\n"
    "0x00000000e0000000 0x00000000efffffff 0x000000000014220c\n"
    "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
    "0x00000000f0000000 0x00000000f1ffffff 0x000000000014220c\n"
    "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
    "0x000000000000e000 0x000000000000e07f 0x0000000000040101\n"
    "0x0000000000000000 0x0000ffffffffffff 0x0000000000046200\n";
// 64-bit region 0, BAR1 at region 2.
constexpr const char* kNewerBoard =
    "0x0000204042000000 0x0000204042ffffff 0x000000000014220c\n"
    "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
    "0x0000202000000000 0x0000203fffffffff 0x000000000014220c\n"
    "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
    "0x0000204040000000 0x0000204041ffffff 0x000000000014220c\n";

TEST(bar1, found_at_either_region) {
  EXPECT_EQ(largest_prefetchable_bytes(kOlderBoard), 256u << 20);
  EXPECT_EQ(largest_prefetchable_bytes(kNewerBoard), 128ull << 30);
}

TEST(bar1, nothing_in_text_without_prefetchable_memory) {
  EXPECT_FALSE(largest_prefetchable_bytes(""));
  EXPECT_FALSE(largest_prefetchable_bytes("garbage\n0x0 0x0 0x0\n"));
  EXPECT_FALSE(largest_prefetchable_bytes("0x00000000f6000000 0x00000000f6ffffff 0x0000000000040200\n"));
}

TEST(bar1, device_that_sysfs_does_not_have) { EXPECT_FALSE(bar1_size_bytes("0000:fe:00.0", "/nonexistent")); }

}  // namespace
}  // namespace pl::tools
