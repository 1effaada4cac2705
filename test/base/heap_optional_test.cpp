// SPDX-License-Identifier: Apache-2.0
#include "base/heap_optional.hpp"

#include <gtest/gtest.h>

#include <string>

namespace pl {
namespace {

TEST(HeapOptional, HasNoValueUntilOneIsGiven) {
  heap_optional<std::string> one;
  EXPECT_FALSE(one);
  EXPECT_EQ(one.value_or("other"), "other");
  EXPECT_EQ(one.copy(), std::nullopt);
  one = std::string("text");
  ASSERT_TRUE(one.has_value());
  EXPECT_EQ(*one, "text");
  EXPECT_EQ(one->size(), 4u);
  EXPECT_EQ(one.value_or("other"), "text");
  EXPECT_EQ(one.copy(), std::optional<std::string>("text"));
  one.reset();
  EXPECT_FALSE(one);
}

TEST(HeapOptional, CopiesAreIndependentAndMovesLeaveNothing) {
  heap_optional<std::string> one("text"), same(one);
  one->append(" and more");
  EXPECT_EQ(*same, "text");
  same = one;
  EXPECT_EQ(*same, "text and more");
  const heap_optional<std::string> taken(std::move(one));
  EXPECT_EQ(*taken, "text and more");
  EXPECT_FALSE(one);  // NOLINT(bugprone-use-after-move): what is tested
  same = std::nullopt;
  EXPECT_FALSE(same);
}

TEST(HeapOptional, ComparesValues) {
  EXPECT_EQ(heap_optional<int>(), heap_optional<int>());
  EXPECT_EQ(heap_optional<int>(3), heap_optional<int>(3));
  EXPECT_FALSE(heap_optional<int>(3) == heap_optional<int>(4));
  EXPECT_FALSE(heap_optional<int>(3) == heap_optional<int>());
  EXPECT_EQ(heap_optional<int>(std::optional<int>(3)), heap_optional<int>(3));
}

}  // namespace
}  // namespace pl
