// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/expectation.hpp"

#include <gtest/gtest.h>

#include "test/tools/bandwidth/machines.hpp"
#include "tools/bandwidth/pcie_rate.hpp"

namespace pl::bandwidth {
namespace {

// By hand: 32 GT/s x 16 x 128/130 / 8 = 63.015; 5 GT/s x 8 x 8/10 / 8 = 4.
TEST(PcieRate, RawRateHasTheLineCode) {
  EXPECT_NEAR(pcie_raw_gb_per_s(1, 16), 4.0, 1e-9);
  EXPECT_NEAR(pcie_raw_gb_per_s(2, 8), 4.0, 1e-9);
  EXPECT_NEAR(pcie_raw_gb_per_s(3, 16), 15.7538, 1e-4);
  EXPECT_NEAR(pcie_raw_gb_per_s(4, 16), 31.5077, 1e-4);
  EXPECT_NEAR(pcie_raw_gb_per_s(5, 16), 63.0154, 1e-4);
  EXPECT_NEAR(pcie_raw_gb_per_s(6, 16), 128.0, 1e-9);
  EXPECT_EQ(pcie_raw_gb_per_s(0, 16), 0);
  EXPECT_EQ(pcie_raw_gb_per_s(7, 16), 0);
  EXPECT_EQ(pcie_raw_gb_per_s(5, 0), 0);
}

// 256 bytes with 16 of header, 4 of LCRC and 4 of framing; a completion has a header of 12.
TEST(PcieRate, PayloadIsWhatHeadersLeave) {
  EXPECT_DOUBLE_EQ(pcie_write_efficiency(5, 256), 256.0 / 280);
  EXPECT_DOUBLE_EQ(pcie_write_efficiency(3, 128), 128.0 / 152);
  EXPECT_DOUBLE_EQ(pcie_completion_efficiency(5, 256), 256.0 / 276);
  EXPECT_DOUBLE_EQ(pcie_write_efficiency(5, 64), 64.0 / 88);
  EXPECT_DOUBLE_EQ(pcie_write_efficiency(4, 0), pcie_write_efficiency(4, 256));
  EXPECT_DOUBLE_EQ(pcie_write_efficiency(6, 256), 236.0 / 256 * 256 / 272);
  EXPECT_DOUBLE_EQ(pcie_request_overhead(5), 24.0 / 512);
}

TEST(Expectation, H100OverPcie) {
  const auto links = machine_of({h100_facts()});
  const auto to_gpu = expect(links, path_of(host_place(), gpu_place(0), by_ce()));
  ASSERT_TRUE(to_gpu);
  EXPECT_NEAR(to_gpu->value, 63.0154 * 256 / 276 * 0.94, 0.01);  // 54.9
  EXPECT_NEAR(to_gpu->limit, 63.0154, 1e-3);
  EXPECT_EQ(to_gpu->limited_by, "PCIe 5.0 x16");
  EXPECT_NE(to_gpu->source.find("envelope"), std::string::npos);
  const auto from_gpu = expect(links, path_of(gpu_place(0), host_place(), by_ce()));
  ASSERT_TRUE(from_gpu);
  EXPECT_NEAR(from_gpu->value, 63.0154 * 256 / 280 * 0.955, 0.01);  // 55.0
}

TEST(Expectation, LocalCopyCountsBytesOnce) {
  const auto h100 = expect(machine_of({h100_facts()}), path_of(gpu_place(0), gpu_place(0), by_ce()));
  ASSERT_TRUE(h100);
  EXPECT_NEAR(h100->limit, 3352.32 / 2, 0.01);  // 5120 bit / 8 x 2619 MHz x 2
  EXPECT_NEAR(h100->value, 3352.32 / 2 * 0.86, 0.01);
  EXPECT_EQ(h100->limited_by, "HBM 5120 bit 2619 MHz");
}

TEST(Expectation, NvlinkBySwitchAndDirect) {
  auto links = machine_of({h200_facts(), h200_facts()});
  const auto path = path_of(gpu_place(0), gpu_place(1), by_ce());
  const auto by_switch = expect(links, path);
  ASSERT_TRUE(by_switch);
  EXPECT_NEAR(by_switch->limit, 18 * 26.562, 1e-6);
  EXPECT_NEAR(by_switch->value, 478.1 * 0.826, 0.1);
  EXPECT_EQ(by_switch->limited_by, "NVLink 4 x 18");
  for (int gpu : {0, 1}) {
    links.gpus[static_cast<std::size_t>(gpu)].has_nvswitch = false;
    links.gpus[static_cast<std::size_t>(gpu)].nvlinks_to_gpu = {{1 - gpu, 6}};
  }
  EXPECT_NEAR(expect(links, path)->limit, 6 * 26.562, 1e-6);
}

TEST(Expectation, PeersWithoutNvlinkHaveTheNarrowerPcieLink) {
  auto links = machine_of({h100_facts(), h100_facts()});
  links.gpus[1].pcie_width_max = 8;
  const auto expected = expect(links, path_of(gpu_place(0), gpu_place(1), by_ce()));
  ASSERT_TRUE(expected);
  EXPECT_NEAR(expected->limit, 31.5077, 1e-3);
}

TEST(Expectation, BothDirectionsAndSharers) {
  const auto links = machine_of({h100_facts()});
  auto path = path_of(gpu_place(0), host_place(), by_ce());
  const double alone = expect(links, path)->value;
  path.opposite_too = true;           // requests for the other direction's reads go this way
  EXPECT_FALSE(expect(links, path));  // the root complex decides who gets more
  path.is_sum_of_both = true;
  const double other = expect(links, path_of(host_place(), gpu_place(0), by_ce()))->value;
  EXPECT_NEAR(expect(links, path)->value, 0.94 * (alone * (1 - 24.0 / 512) + other), 1e-9);
  EXPECT_NEAR(expect(links, path)->limit, 2 * 63.0154, 1e-3);
  path = path_of(gpu_place(0), host_place(), by_ce());
  path.same_direction = 4;
  EXPECT_NEAR(expect(links, path)->value, alone / 4, 1e-9);
}

TEST(Expectation, ExecutorsHaveTheirOwnLimits) {
  const auto links = machine_of({h100_facts()});
  const auto to_gpu = [&](executor executor) { return expect(links, path_of(host_place(), gpu_place(0), executor)); };
  EXPECT_NEAR(to_gpu(by_sm())->value, 63.0154 * 0.81, 0.1);
  EXPECT_NEAR(expect(links, path_of(gpu_place(0), host_place(), by_sm()))->value, 63.0154 * 0.83, 0.1);
  EXPECT_FALSE(to_gpu(by_sm(0, 2)));  // two multiprocessors: nothing says
  EXPECT_DOUBLE_EQ(to_gpu(by_bar(0))->value, 8.0);
  EXPECT_DOUBLE_EQ(to_gpu(by_bar(6))->value, 32.5);
  EXPECT_DOUBLE_EQ(to_gpu(by_engine(3))->value, 12.0);
  EXPECT_DOUBLE_EQ(to_gpu(by_engine(8))->value, 50.3);
  EXPECT_FALSE(expect(links, path_of(gpu_place(0), host_place(), by_bar(4))));
}

// PCIe 3 x8 carries 7.88 GB/s; stores of 64 bytes leave 64/88 of it.
TEST(Expectation, NarrowLinkLimitsTheCpuToo) {
  auto facts = h100_facts();
  facts.pcie_generation_max = 3, facts.pcie_width_max = 8;
  const auto slow = expect(machine_of({facts}), path_of(host_place(), gpu_place(0), by_bar(4)));
  ASSERT_TRUE(slow);
  EXPECT_NEAR(slow->value, 7.8769 * 64 / 88, 1e-3);
}

TEST(Expectation, NothingWithoutABasis) {
  EXPECT_FALSE(expect(machine_of({}), path_of(host_place(), gpu_place(0), by_ce())));
  EXPECT_FALSE(expect(machine_of({gpu_link_facts{}}), path_of(host_place(), gpu_place(0), by_ce())));
  EXPECT_FALSE(expect(machine_of({h100_facts()}), path_of(host_place(), host_place(), by_ce())));
  auto links = machine_of({h100_facts()});
  links.has_rates = false;  // a simulated GPU
  EXPECT_FALSE(expect(links, path_of(host_place(), gpu_place(0), by_ce())));
  links = machine_of({h100_facts()});
  links.gpus[0].coherent_host = true;
  EXPECT_FALSE(expect(links, path_of(host_place(), gpu_place(0), by_ce())));
}

TEST(Expectation, LatenciesByWhatIsLoaded) {
  const auto links = machine_of({h200_facts(), h200_facts()});
  const auto latency = [&](place location, executor executor, std::uint64_t bytes) {
    auto path = path_of(location, gpu_place(0), executor, bytes);
    path.measured_quantity = transfer_path::quantity::latency;
    path.is_local_copy = false;
    const auto out = expect(links, path);
    return out ? out->value : 0;
  };
  EXPECT_EQ(latency(host_place(), by_sm(), 2 << 20), 1200);
  EXPECT_EQ(latency(gpu_place(0), by_sm(), 2 << 20), 150);
  EXPECT_EQ(latency(gpu_place(0), by_sm(), 1 << 30), 400);
  EXPECT_EQ(latency(gpu_place(1), by_sm(), 2 << 20), 900);
  EXPECT_EQ(latency(gpu_place(0), by_bar(1), 8), 1300);
  EXPECT_EQ(latency(host_place(), by_bar(1), 8), 200);
}

}  // namespace
}  // namespace pl::bandwidth
