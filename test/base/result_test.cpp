// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <memory>
#include <peerlane/result.hpp>

namespace peerlane {
namespace {

TEST(Result, CarriesMoveOnlyValues) {
  result<std::unique_ptr<int>> r = std::make_unique<int>(7);
  ASSERT_TRUE(r);
  const std::unique_ptr<int> taken = *std::move(r);
  EXPECT_EQ(*taken, 7);
}

TEST(Result, AnErrorNeverLooksLikeSuccess) {
  const result<int> r = failure{0, "code forgotten"};
  EXPECT_FALSE(r);
  EXPECT_EQ(r.code(), EIO);
  const status s = failure{0, "code forgotten"};
  EXPECT_FALSE(s);
  EXPECT_EQ(s.code(), EIO);
  EXPECT_TRUE(status{});
}

}  // namespace
}  // namespace peerlane
