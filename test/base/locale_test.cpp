// SPDX-License-Identifier: Apache-2.0
// Numbers in a program that has chosen a locale with a decimal comma.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "base/c_numbers.hpp"
#include "base/text.hpp"
#include "test/support/comma_locale.hpp"

namespace pl {
namespace {

TEST(Locale, NumbersAreWrittenAndReadAsInC) {
  const test::comma_locale chosen;
  if (!chosen.is_set()) GTEST_SKIP() << "localedef makes no locale here (package libc-bin)";
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", 1.5);
  ASSERT_STREQ(text, "1,5") << "the program's own";
  EXPECT_EQ(format("%.2f %.17g", 1234.25, 0.5), "1234.25 0.5");
  {
    const c_numbers during_read;
    EXPECT_EQ(std::strtod("1.5", nullptr), 1.5);
  }
  EXPECT_EQ(std::strtod("1,5", nullptr), 1.5) << "the program's own again";
}

}  // namespace
}  // namespace pl
