// SPDX-License-Identifier: Apache-2.0
#include "tools/gdrcopy/sanity.hpp"

#include <gtest/gtest.h>

namespace pl::tools {
namespace {

TEST(visible_entry, counts_as_a_process_under_that_list_does) {
  EXPECT_EQ(visible_entry(nullptr, 0), "0");
  EXPECT_EQ(visible_entry(nullptr, 3), "3");
  EXPECT_EQ(visible_entry("3,2,1,0", 0), "3");
  EXPECT_EQ(visible_entry("3,2,1,0", 3), "0");
  EXPECT_EQ(visible_entry("GPU-12ab,MIG-34cd", 1), "MIG-34cd");
}

TEST(visible_entry, is_empty_where_no_gpu_is_named) {
  EXPECT_EQ(visible_entry("", 0), "");
  EXPECT_EQ(visible_entry("0,1", 2), "");
  EXPECT_EQ(visible_entry("0,1", -1), "");
}

}  // namespace
}  // namespace pl::tools
