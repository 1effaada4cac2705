// SPDX-License-Identifier: Apache-2.0
#include "base/text.hpp"

#include <gtest/gtest.h>

#include <cerrno>

namespace pl {
namespace {

TEST(Text, ParsesSizes) {
  EXPECT_EQ(parse_size("0"), 0u);
  EXPECT_EQ(parse_size("131072"), 131072u);
  EXPECT_EQ(parse_size("0x10000"), 65536u);
  EXPECT_EQ(parse_size("64K"), 65536u);
  EXPECT_EQ(parse_size("64kib"), 65536u);
  EXPECT_EQ(parse_size("2G"), std::uint64_t{2} << 30);
  EXPECT_EQ(parse_size("16777215G"), std::uint64_t{16777215} << 30);
  for (const char* bad : {"", "K", "-1", "+1", "1.5M", "1 K", "12X", "0x", "99999999999999999999", "18446744073709551615G"})
    EXPECT_FALSE(parse_size(bad)) << bad;
}

TEST(Text, ParsesIntegers) {
  EXPECT_EQ(parse_integer("-42"), -42);
  EXPECT_EQ(parse_integer("0x1f"), 31);
  for (const char* bad : {"", "-", "--1", "1a", "9223372036854775808"}) EXPECT_FALSE(parse_integer(bad)) << bad;
}

TEST(Text, FormatsExactPowersOnly) {
  EXPECT_EQ(format_size(65536), "64 KiB");
  EXPECT_EQ(format_size(1000), "1000 B");
  EXPECT_EQ(format_size(std::uint64_t{40} << 30), "40 GiB");
  EXPECT_EQ(format("%s-%03d", "a", 7), "a-007");
  EXPECT_EQ(errno_text(EINVAL), "EINVAL (Invalid argument)");
}

TEST(Text, OneIsNoPlural) {
  EXPECT_EQ(plural(1, "GPU"), "1 GPU");
  EXPECT_EQ(plural(0, "GPU"), "0 GPUs");
  EXPECT_EQ(plural(2, "process", "processes"), "2 processes");
}

}  // namespace
}  // namespace pl
