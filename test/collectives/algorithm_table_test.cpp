// SPDX-License-Identifier: Apache-2.0
#include "collectives/algorithm_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

namespace pl::collectives {
namespace {

TEST(algorithm_table, first_rule_that_fits) {
  const auto table = algorithm_table::parse("# mine\nall_reduce 4 1000 ring\n\nbroadcast * 10 linear # small\n");
  ASSERT_TRUE(table);
  EXPECT_EQ(table->choose(collective::all_reduce, 4, 1000), algorithm::ring);
  EXPECT_EQ(table->choose(collective::all_reduce, 5, 1000), algorithm::recursive_doubling);
  EXPECT_EQ(table->choose(collective::all_reduce, 4, 1001), algorithm::recursive_doubling);
  EXPECT_EQ(table->choose(collective::broadcast, 100, 10), algorithm::linear);
}

TEST(algorithm_table, text_is_read_back) {
  const auto table = algorithm_table::parse("gather 3 77 binomial");
  ASSERT_TRUE(table);
  const auto again = algorithm_table::parse(table->text());
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_NE(table->text().find("77"), std::string::npos);
  for (const std::uint64_t bytes : {0ull, 77ull, 78ull, 5000ull})
    for (int ranks = 1; ranks < 6; ++ranks)
      for (unsigned kind = 0; kind < kCollectives; ++kind)
        EXPECT_EQ(table->choose(collective{static_cast<std::uint8_t>(kind)}, ranks, bytes),
                  again->choose(collective{static_cast<std::uint8_t>(kind)}, ranks, bytes));
}

TEST(algorithm_table, wrong_lines_are_named) {
  for (const char* const text : {"x * * ring", "all_reduce * ring", "all_reduce * * linear", "all_reduce -1 * ring",
                                 "all_reduce * 1k ring", "all_reduce * * ring more"}) {
    const auto table = algorithm_table::parse(std::string("\n") + text);
    ASSERT_FALSE(table) << text;
    EXPECT_EQ(table.code(), EINVAL);
    EXPECT_NE(table.error().message.find("line 2"), std::string::npos) << table.error().message;
  }
}

TEST(algorithm_table, every_choice_is_one_of_the_collective) {
  const auto table = algorithm_table::defaults();
  for (unsigned kind = 0; kind < kCollectives; ++kind)
    for (std::uint64_t bytes = 1; bytes < 1u << 30; bytes *= 4) {
      const auto choices = algorithms_of(collective{static_cast<std::uint8_t>(kind)});
      const auto chosen = table.choose(collective{static_cast<std::uint8_t>(kind)}, 3, bytes);
      EXPECT_NE(std::find(choices.begin(), choices.end(), chosen), choices.end());
    }
}

}  // namespace
}  // namespace pl::collectives
