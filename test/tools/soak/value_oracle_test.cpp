// SPDX-License-Identifier: Apache-2.0
#include "tools/soak/value_oracle.hpp"

#include <gtest/gtest.h>

namespace pl::soak {
namespace {

TEST(ValueOracle, ReadsTheStateOfWhatItMade) {
  for (const std::size_t bytes : {24u, 25u, 31u, 32u, 1000u, 70'001u}) {
    const auto value = value_bytes(7, 42, bytes);
    ASSERT_EQ(value.size(), bytes);
    EXPECT_EQ(state_of(7, value.data(), value.size()), 42u);
    EXPECT_FALSE(state_of(8, value.data(), value.size())) << "another key's value";
  }
}

TEST(ValueOracle, SeesEveryChangedByteAndEveryOtherLength) {
  const auto value = value_bytes(1, 5, 301);
  for (std::size_t i = 0; i < value.size(); ++i) {
    auto damaged = value;
    damaged[i] ^= 1;
    EXPECT_NE(state_of(1, damaged.data(), damaged.size()), 5u) << "byte " << i;
  }
  EXPECT_FALSE(state_of(1, value.data(), value.size() - 1));
  EXPECT_FALSE(state_of(1, value.data(), 23));
}

TEST(ValueOracle, KnowsTheFirstPartOfAValue) {
  const auto value = value_bytes(1, 5, 301);
  EXPECT_EQ(state_of_part(1, value.data(), 100, 301), 5u);
  EXPECT_EQ(state_of_part(1, value.data(), 301, 301), 5u);
  EXPECT_FALSE(state_of_part(1, value.data(), 100, 300)) << "the value says that it is longer";
  EXPECT_FALSE(state_of_part(1, value.data(), 301, 100));
  auto damaged = value;
  damaged[60] ^= 1;
  EXPECT_FALSE(state_of_part(1, damaged.data(), 100, 301));
  EXPECT_TRUE(state_of_part(1, damaged.data(), 60, 301));
}

TEST(KeyStates, OnlyWhatWasSentSinceTheLastAcknowledgedMayBeSeen) {
  key_states states;
  EXPECT_TRUE(states.may_be(0));
  states.begin(1);
  EXPECT_TRUE(states.may_be(0) && states.may_be(1));
  states.acknowledge(1);
  EXPECT_FALSE(states.may_be(0));
  states.begin(2);
  states.begin(3);
  EXPECT_TRUE(states.may_be(1) && states.may_be(2) && states.may_be(3));
  states.acknowledge(3);
  EXPECT_EQ(text_of(states.possible()), "{3}");
  states.may_be_lost();
  EXPECT_EQ(text_of(states.possible()), "{none, 3}");
}

}  // namespace
}  // namespace pl::soak
