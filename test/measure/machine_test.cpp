// SPDX-License-Identifier: Apache-2.0
#include "measure/machine.hpp"

#include <gtest/gtest.h>

#include <regex>

namespace pl {
namespace {

TEST(kernel_driver_text, open_flavour) {
  const auto out = parse_kernel_driver(
      "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (root@host)\nGCC version: 12\n");
  EXPECT_EQ(out.version, "580.95.05");
  EXPECT_EQ(out.flavor, "open");
}

TEST(kernel_driver_text, proprietary_flavour) {
  const auto out = parse_kernel_driver("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.12  Wed Sep 20 2023\n");
  EXPECT_EQ(out.version, "535.104.12");
  EXPECT_EQ(out.flavor, "proprietary");
}

TEST(kernel_driver_text, anything_else_is_unknown) {
  for (const char* text : {"", "hello 1.2\n", "NVRM version:\n"}) EXPECT_EQ(parse_kernel_driver(text).version, "unknown");
}

TEST(machine, host_part_is_filled) {
  const auto facts = describe_host();
  EXPECT_TRUE(std::regex_match(facts.utc_date, std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)"))) << facts.utc_date;
  EXPECT_TRUE(facts.kernel.starts_with("Linux ")) << facts.kernel;
  EXPECT_GE(facts.cpu_count, 1);
  EXPECT_FALSE(facts.git_revision.empty());
  EXPECT_EQ(facts.gpu_name, "unknown");
}

cu::result_t fake_count(int* count) { return *count = 3, 0; }
cu::result_t fake_get(cu::device_t* device, int ordinal) { return *device = ordinal, 0; }
cu::result_t fake_name(char* name, int capacity, cu::device_t) {
  return std::snprintf(name, static_cast<std::size_t>(capacity), "Test GPU"), 0;
}
cu::result_t fake_bus(char* text, int capacity, cu::device_t device) {
  return std::snprintf(text, static_cast<std::size_t>(capacity), "0000:F%d:00.0", device), 0;
}

TEST(machine, gpu_part_comes_from_the_driver_table) {
  cu::driver_table table;
  table.cuDeviceGetCount = fake_count;
  table.cuDeviceGet = fake_get;
  table.cuDeviceGetName = fake_name;
  table.cuDeviceGetPCIBusId = fake_bus;
  table.driver_version = 13000;
  table.is_simulated = true;
  auto facts = describe_host();
  describe_gpu(facts, table, 2);
  EXPECT_EQ(facts.gpu_name, "Test GPU");
  EXPECT_EQ(facts.gpu_bus_id, "0000:f2:00.0");
  EXPECT_EQ(facts.gpu_count, 3);
  EXPECT_EQ(facts.cuda_version, 13000);
  EXPECT_TRUE(facts.simulated);
  EXPECT_EQ(facts.driver_version, "simulated");
}

TEST(machine, driver_without_bus_id_call) {
  cu::driver_table table;
  table.cuDeviceGet = fake_get;
  EXPECT_EQ(pci_bus_id(table, 0), "");
}

}  // namespace
}  // namespace pl
