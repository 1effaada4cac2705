// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "measure/text_table.hpp"

namespace pl {
namespace {

TEST(text_table, aligns_and_trims) {
  text_table table({{"name", text_table::align::left}, {"us"}, {"remark", text_table::align::left}});
  table.add_row({"a", "1.5", "ok"});
  table.add_row({"longer", "12.25"});
  EXPECT_EQ(table.render(),
            "name       us  remark\n"
            "------  -----  ------\n"
            "a         1.5  ok\n"
            "longer  12.25\n");
}

TEST(text_table, counts_characters_not_bytes) {
  text_table table({{"x"}, {"y"}});
  table.add_row({"\xC2\xB5s", "1"});
  EXPECT_EQ(table.render(), " x  y\n--  -\n\xC2\xB5s  1\n");
}

TEST(short_number, keeps_three_to_four_digits) {
  EXPECT_EQ(short_number(0.0831), "0.083");
  EXPECT_EQ(short_number(1.0512), "1.05");
  EXPECT_EQ(short_number(123.44), "123.4");
  EXPECT_EQ(short_number(12345.6), "12346");
}

TEST(duration, picks_the_unit) {
  EXPECT_EQ(format_duration_ns(310), "0.310 us");
  EXPECT_EQ(format_duration_ns(1.2e6), "1.20 ms");
  EXPECT_EQ(format_duration_ns(2.5e9), "2.50 s");
}

}  // namespace
}  // namespace pl
