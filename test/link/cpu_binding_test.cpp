// SPDX-License-Identifier: Apache-2.0
#include "cpu_binding.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

namespace pl::link {
namespace {

const cpu_numbers kAllowed{0, 1, 2, 3, 8, 9, 10, 11};
const cpu_numbers kNear{8, 9};

cpu_numbers given(const std::string& policy, int rank, int size = 4) {
  auto out = cpus_of_policy(policy, kNear, kAllowed, {rank, size});
  return out ? *out : cpu_numbers{};
}

TEST(cpu_binding, policies) {
  EXPECT_EQ(given("", 0), kAllowed);
  EXPECT_EQ(given("none", 3), kAllowed);
  EXPECT_EQ(given("near", 1), kNear);
  EXPECT_EQ(given("bunch", 0), cpu_numbers{0});
  EXPECT_EQ(given("bunch", 5), cpu_numbers{9});
  EXPECT_EQ(given("bunch", 8), cpu_numbers{0});
  EXPECT_EQ(given("scatter", 1, 2), cpu_numbers{8});
  EXPECT_EQ(given("scatter", 3, 4), cpu_numbers{10});
  EXPECT_EQ(given("scatter", 9, 16), cpu_numbers{8});
  EXPECT_EQ(given("2-8", 7), (cpu_numbers{2, 3, 8}));
  EXPECT_EQ(given("0-1:8,10", 1), (cpu_numbers{8, 10}));
  EXPECT_EQ(given("0-1:8,10", 2), (cpu_numbers{0, 1}));
}

TEST(cpu_binding, near_without_such_cpus_binds_nothing) {
  const auto out = cpus_of_policy("near", {}, kAllowed, {0, 1});
  ASSERT_TRUE(out);
  EXPECT_EQ(*out, kAllowed);
}

TEST(cpu_binding, refusals_say_what_there_is) {
  const auto unknown = cpus_of_policy("sideways", kNear, kAllowed, {0, 1});
  ASSERT_EQ(unknown.code(), EINVAL);
  EXPECT_NE(unknown.error().message.find("none, near, bunch, scatter"), std::string::npos);
  const auto outside = cpus_of_policy("4-7", kNear, kAllowed, {0, 1});
  ASSERT_EQ(outside.code(), EINVAL);
  EXPECT_NE(outside.error().message.find("0-3,8-11"), std::string::npos) << outside.error().message;
}

TEST(cpu_binding, puts_the_calling_thread_there_and_no_other) {
  const auto before = cpus_of_this_thread();
  cpu_numbers after;
  std::thread([&] {
    const auto words = bind_this_thread("bunch", {}, {0, 1});
    EXPECT_TRUE(words && *words == std::to_string(before[0]) + " (bunch)");
    after = cpus_of_this_thread();
  }).join();
  EXPECT_EQ(after, cpu_numbers{before[0]});
  EXPECT_EQ(cpus_of_this_thread(), before);
}

TEST(cpu_binding, names_of_mvapich) {
  for (const char* name : {"PEERLANE_LINK_CPU", "MV2_ENABLE_AFFINITY", "MV2_CPU_MAPPING", "MV2_CPU_BINDING_POLICY"})
    unsetenv(name);
  EXPECT_EQ(cpu_policy_from_environment(), "");
  setenv("MV2_CPU_BINDING_POLICY", "hybrid", 1);
  EXPECT_EQ(cpu_policy_from_environment(), "near");
  setenv("MV2_CPU_MAPPING", "0:4", 1);
  EXPECT_EQ(cpu_policy_from_environment(), "0:4");
  setenv("MV2_ENABLE_AFFINITY", "0", 1);
  EXPECT_EQ(cpu_policy_from_environment(), "none");
  setenv("PEERLANE_LINK_CPU", "near", 1);
  EXPECT_EQ(cpu_policy_from_environment(), "near");
  for (const char* name : {"PEERLANE_LINK_CPU", "MV2_ENABLE_AFFINITY", "MV2_CPU_MAPPING", "MV2_CPU_BINDING_POLICY"})
    unsetenv(name);
}

}  // namespace
}  // namespace pl::link
