// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.hpp"

#include <gtest/gtest.h>

#include <string>

namespace pl {
namespace {

TEST(utf8, CharactersOfEveryLength) {
  for (const std::string_view one : {"a", "\x01", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
                                     "\xee\x80\x80", "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"})
    EXPECT_EQ(utf8_character_bytes(std::string(one) + "\x80"), one.size()) << one;
  EXPECT_EQ(utf8_character_bytes(std::string_view("\0", 1)), 1u);
  EXPECT_EQ(utf8_character_bytes(""), 0u);
}

TEST(utf8, WhatIsNone) {
  for (const std::string_view one :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2\x41", "\xe0\x9f\xbf", "\xe2\x82", "\xed\xa0\x80",
        "\xed\xbf\xbf", "\xf0\x8f\xbf\xbf", "\xf0\x90\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"}) {
    EXPECT_EQ(utf8_character_bytes(one), 0u) << one;
    EXPECT_FALSE(is_utf8("a" + std::string(one)));
  }
  EXPECT_TRUE(is_utf8("\xe7\xbc\x93\xe5\xad\x98 a\n"));
}

TEST(utf8, ControlsAreNotPrintable) {
  for (const std::string_view one : {"\x1f", "\x7f", "\xc2\x80", "\xc2\x9f"})
    EXPECT_EQ(utf8_printable_bytes(one), 0u) << one;
  for (const std::string_view one : {" ", "~", "\xc2\xa0", "\xc3\xa9"})
    EXPECT_EQ(utf8_printable_bytes(one), one.size()) << one;
}

}  // namespace
}  // namespace pl
