// SPDX-License-Identifier: Apache-2.0
#include "messaging/bootstrap/cpu_binding.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "messaging/bootstrap/foreign_settings.hpp"

namespace pl::messaging {
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
  setenv("MV2_CPU_BINDING_POLICY", "SCATTER", 1);
  EXPECT_EQ(cpu_policy_from_environment(), "scatter") << "MVAPICH2 takes it in any case";
  EXPECT_TRUE(cpus_of_policy(cpu_policy_from_environment(), {}, cpu_numbers{0, 1}, {1, 2}));
  setenv("MV2_CPU_BINDING_POLICY", "Hybrid", 1);
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

TEST(foreign_settings, rails_of_mvapich) {
  EXPECT_EQ(rails_of_mapping("mlx5_0:mlx5_3"), "mlx5_0:1,mlx5_3:1");
  EXPECT_EQ(rails_of_mapping("mlx5_0"), "mlx5_0:1");
  for (const char* other : {"", "BUNCH", "0:1:0:1", "mlx5_0:BUNCH"}) EXPECT_EQ(rails_of_mapping(other), "") << other;
}

// One variable of another stack, with the adapter mlx5_0 in this machine and no other.
struct rail_case {
  const char* name;
  const char* value;
  const char* devices;  // it acts
  bool is_one_each;
  const char* refusal;  // it does not: the line has its name, its value and this
};

constexpr rail_case kRailCases[] = {
    {"MV2_PROCESS_TO_RAIL_MAPPING", "mlx5_0", "mlx5_0:1", true, nullptr},
    {"MV2_PROCESS_TO_RAIL_MAPPING", "mlx5_0:mlx5_1", "", false, "lacks an adapter"},
    {"MV2_PROCESS_TO_RAIL_MAPPING", "BUNCH", "", false, "names of adapters only"},
    {"MV2_IBA_HCA", "mlx5_0", "mlx5_0:1", false, nullptr},
    {"MV2_IBA_HCA", "mlx5_0:mlx5_1", "", false, "lacks an adapter"},
    {"MV2_IBA_HCA", "0:1", "", false, "names of adapters only"},
    {"MV2_RAIL_SHARING_POLICY", "USE_FIRST", "", false, nullptr},
    {"MV2_RAIL_SHARING_POLICY", "ROUND_ROBIN", "", false, "small messages take the first rail"},
    {"MV2_RAIL_SHARING_POLICY", "FIXED_MAPPING", "", false, "no rails are named"},
    {"MV2_RAIL_SHARING_POLICY", "ANY_OTHER", "", false, "not one of USE_FIRST"},
    {"MV2_NUM_HCAS", "2", "", false, "PEERLANE_LINK_RAILS"},
    {"MV2_NUM_PORTS", "2", "", false, "PEERLANE_LINK_RAILS"},
    {"MV2_SM_SCHEDULING", "USE_FIRST", "", false, "MV2_RAIL_SHARING_POLICY"},
    {"MV2_GPUDIRECT_LIMIT", "8192", "", false, "PEERLANE_LINK_GPU_LANES=0"},
    {"OMPI_MCA_btl_openib_if_include", "mlx5_0:2", "mlx5_0:2", false, nullptr},
    {"OMPI_MCA_btl_openib_if_include", "mlx5_0,mlx5_1:1", "", false, "lacks an adapter"},
    {"OMPI_MCA_btl_openib_if_exclude", "mlx5_0", "", false, "PEERLANE_LINK_RAILS"},
    {"OMPI_MCA_btl_tcp_if_include", "eth0", "", false, "PEERLANE_LINK_RAILS"},
    {"OMPI_MCA_btl_tcp_if_exclude", "lo", "", false, "PEERLANE_LINK_RAILS"},
};

TEST(foreign_settings, each_rail_variable_acts_or_is_refused_by_name) {
  const std::string folder = ::testing::TempDir() + "adapters_" + std::to_string(getpid());
  std::filesystem::create_directories(folder + "/mlx5_0");
  EXPECT_TRUE(unused_settings(folder).empty());
  for (const auto& one : kRailCases) {
    SCOPED_TRACE(std::string(one.name) + "=" + one.value);
    setenv(one.name, one.value, 1);
    const auto rails = rails_from_environment(folder);
    EXPECT_EQ(rails.devices, one.devices);
    EXPECT_EQ(rails.is_one_each, one.is_one_each);
    const auto lines = unused_settings(folder);
    EXPECT_EQ(lines.size(), one.refusal == nullptr ? 0u : 1u);
    for (const auto& line : lines) {
      EXPECT_TRUE(line.starts_with(std::string(one.name) + "=" + one.value + " is not used: ")) << line;
      EXPECT_NE(line.find(one.refusal), std::string::npos) << line;
      EXPECT_EQ(line.find('\n'), std::string::npos);
    }
    unsetenv(one.name);
  }
  std::filesystem::remove_all(folder);
}

TEST(foreign_settings, own_rails_win) {
  setenv("PEERLANE_LINK_RAILS", "eth0,eth1", 1);
  setenv("MV2_IBA_HCA", "mlx5_7", 1);
  setenv("MV2_RAIL_SHARING_POLICY", "FIXED_MAPPING", 1);
  EXPECT_TRUE(unused_settings("/nonexistent").empty());
  for (const char* name : {"PEERLANE_LINK_RAILS", "MV2_IBA_HCA", "MV2_RAIL_SHARING_POLICY"}) unsetenv(name);
}

TEST(foreign_settings, ucx_may_forbid_adapters_gpu_memory) {
  EXPECT_FALSE(forbids_gpu_rdma());
  setenv("UCX_IB_GPU_DIRECT_RDMA", "n", 1);
  EXPECT_TRUE(forbids_gpu_rdma());
  setenv("UCX_IB_GPU_DIRECT_RDMA", "try", 1);
  EXPECT_FALSE(forbids_gpu_rdma());
  unsetenv("UCX_IB_GPU_DIRECT_RDMA");
}

}  // namespace
}  // namespace pl::messaging
