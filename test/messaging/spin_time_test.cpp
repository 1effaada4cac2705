// SPDX-License-Identifier: Apache-2.0
// For how long a thread looks before it sleeps follows how far events are apart.
#include "messaging/spin_time.hpp"

#include <gtest/gtest.h>

#include <cstdint>

namespace pl::messaging {
namespace {

constexpr std::uint64_t kSoonNs = 30'000, kLateNs = 10'000'000;

TEST(spin_time, grows_while_events_come_soon_and_has_a_bound) {
  spin_time spin(true);
  EXPECT_EQ(spin.ns(), spin_time::kLeastNs);
  spin.slept(kSoonNs);
  EXPECT_EQ(spin.ns(), 2 * spin_time::kLeastNs);
  for (int i = 0; i < 20; ++i) spin.slept(kSoonNs);
  EXPECT_EQ(spin.ns(), spin_time::kMaxNs);
}

TEST(spin_time, goes_back_where_it_was_in_vain) {
  spin_time spin(true);
  for (int i = 0; i < 20; ++i) spin.slept(kSoonNs);
  spin.slept(kLateNs);
  EXPECT_EQ(spin.ns(), spin_time::kMaxNs / 2);
  for (int i = 0; i < 20; ++i) spin.slept(kLateNs);
  EXPECT_EQ(spin.ns(), spin_time::kLeastNs);
}

// Each look would take the time of the thread that it waits for.
TEST(spin_time, stays_short_where_cpus_are_few) {
  spin_time spin(false);
  for (int i = 0; i < 20; ++i) spin.slept(kSoonNs);
  EXPECT_EQ(spin.ns(), spin_time::kLeastNs);
}

}  // namespace
}  // namespace pl::messaging
