// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/judgement.hpp"

#include <gtest/gtest.h>

#include "test/tools/bandwidth/machines.hpp"

namespace pl::bandwidth {
namespace {

verdict judge_on(const machine_links& links, const transfer_path& path, double value, measurement_context known = {}) {
  const auto expected = expect(links, path);
  if (!expected) return {verdict_level::suspicious, 0, "no expectation"};
  if (known.before == nullptr) known.before = &links;
  return judge(value, *expected, path, known);
}

transfer_path to_gpu(std::uint64_t bytes = 1ull << 30) { return path_of(host_place(), gpu_place(0), by_ce(), bytes); }

void expect_low(const verdict& got, const char* words) {
  EXPECT_EQ(got.level, verdict_level::low) << got.reason;
  EXPECT_NE(got.reason.find(words), std::string::npos) << got.reason;
}

// ---- What was measured on real GPUs is good -----------------------------------------------------------------------------

TEST(Judgement, MeasuredValuesAreGood) {
  const auto h100 = machine_of({h100_facts()});
  const auto h200 = machine_of({h200_facts(), h200_facts()});
  const struct {
    const machine_links& links;
    place source, destination;
    bandwidth::executor executor;
    std::uint64_t mib;
    double gb_per_s;
  } measured[] = {
      {h100, host_place(), gpu_place(0), by_ce(), 1024, 54.87},
      {h100, host_place(), gpu_place(0), by_ce(), 16, 53.36},
      {h200, host_place(), gpu_place(0), by_ce(), 1024, 55.40},
      {h100, gpu_place(0), host_place(), by_ce(), 1024, 55.10},
      {h200, gpu_place(0), host_place(), by_ce(), 16, 53.59},
      {h100, gpu_place(0), gpu_place(0), by_ce(), 1024, 1479.6},
      {h200, gpu_place(0), gpu_place(0), by_ce(), 1024, 2059.0},
      {h200, gpu_place(0), gpu_place(1), by_ce(), 64, 375.1},
      {h200, gpu_place(0), gpu_place(1), by_ce(), 1024, 395.2},
      {h100, host_place(), gpu_place(0), by_bar(1), 16, 13.54},
      {h100, host_place(), gpu_place(0), by_bar(2), 16, 23.67},
      {h200, host_place(), gpu_place(0), by_bar(4), 16, 33.08},
      {h100, host_place(), gpu_place(0), by_bar(4), 1024, 28.80},
      {h100, gpu_place(0), host_place(), by_bar(1), 0, 0.7366},
      {h200, gpu_place(0), host_place(), by_bar(1), 0, 0.99},
      {h100, host_place(), gpu_place(0), by_engine(4), 16, 45.5},
      {h200, host_place(), gpu_place(0), by_engine(8), 16, 50.56},
      {h100, gpu_place(0), host_place(), by_engine(1), 16, 41.61},
      {h200, gpu_place(0), host_place(), by_engine(2), 16, 51.61},
      {h100, gpu_place(0), gpu_place(0), by_engine(1), 16, 33.44},
      {h200, gpu_place(0), gpu_place(0), by_engine(8), 16, 256.7},
      {h100, host_place(), gpu_place(0), by_sm(), 512, 51.16},
      {h100, gpu_place(0), host_place(), by_sm(), 512, 52.45},
      {h100, host_place(host_kind::pageable), gpu_place(0), by_ce(), 1024, 9.7},
  };
  for (const auto& one : measured) {
    const auto got = judge_on(one.links, path_of(one.source, one.destination, one.executor, one.mib << 20), one.gb_per_s);
    EXPECT_EQ(got.level, verdict_level::good) << one.gb_per_s << " GB/s: " << got.reason;
    EXPECT_EQ(got.reason, "");
  }
}

// ---- Every reason
// ---------------------------------------------------------------------------------------------------------

TEST(Judgement, LinkTrainedDown) {
  auto facts = h100_facts();
  facts.pcie_generation_now = 3, facts.pcie_width_now = 8;
  const auto got = judge_on(machine_of({facts}), to_gpu(), 6.7);
  expect_low(got, "trained down");
  expect_low(got, "PCIe 3.0 x8 of PCIe 5.0 x16");
}

// Read while idle: 45 GB/s did not come over PCIe 1.0 x16.
TEST(Judgement, AnIdleLinkIsNoReason) {
  auto facts = h100_facts();
  facts.pcie_generation_now = 1;
  const auto got = judge_on(machine_of({facts}), to_gpu(), 45);
  expect_low(got, "unexplained");
  EXPECT_EQ(judge_on(machine_of({facts}), to_gpu(), 55).level, verdict_level::good);
}

TEST(Judgement, TheLookAfterTheRunCounts) {
  auto idle = h100_facts();
  idle.pcie_generation_now = 1;
  const auto before = machine_of({idle}), after = machine_of({h100_facts()});
  measurement_context known;
  known.before = &before, known.after = &after;
  EXPECT_EQ(judge_on(before, to_gpu(), 3.5, known).level, verdict_level::suspicious);
}

TEST(Judgement, NarrowUplink) {
  auto facts = h100_facts();
  facts.uplink_generation = 5, facts.uplink_width = 8, facts.uplink_bus_id = "0000:16:00.0";
  expect_low(judge_on(machine_of({facts}), to_gpu(), 27), "bridge 0000:16:00.0 above GPU 0 has a narrower link");
  EXPECT_EQ(judge_on(machine_of({facts}), to_gpu(), 40).reason.find("bridge"), std::string::npos);
}

TEST(Judgement, WrongNumaNode) {
  measurement_context known;
  known.host_node = 1;
  expect_low(judge_on(machine_of({h100_facts()}), to_gpu(), 30, known), "wrong NUMA node: the host memory is on node 1");
  known.host_node = 0;
  expect_low(judge_on(machine_of({h100_facts()}), to_gpu(), 40, known), "unexplained");
}

// Four H200 of one host, all to host at once: 30.7 GB/s each, 55 alone.
TEST(Judgement, TheHostGivesOutBeforeTheLinks) {
  transfer_path path = to_gpu();
  path.gpus_at_host = 4;
  const auto got = judge_on(machine_of({h100_facts()}), path, 30.7);
  expect_low(got, "4 GPUs use the host's memory at once, some 123 GB/s together");
  path.gpus_at_host = 1;
  EXPECT_EQ(judge_on(machine_of({h100_facts()}), path, 30.7).level, verdict_level::suspicious);
}

TEST(Judgement, MissingNvlinks) {
  auto links = machine_of({h200_facts(), h200_facts()});
  links.gpus[1].nvlinks_active = 12;
  expect_low(judge_on(links, path_of(gpu_place(0), gpu_place(1), by_ce()), 262), "NVLinks missing: GPU 1 has 12 of 18");
}

TEST(Judgement, ThrottleBits) {
  const std::pair<std::uint64_t, const char*> kinds[] = {
      {0x20, "thermal"}, {0x40, "thermal"}, {0x08, "hardware slowdown"}, {0x04, "power cap"}, {0x80, "power brake"}};
  for (const auto& [bits, words] : kinds) {
    auto facts = h100_facts();
    facts.throttle_reasons = bits;
    expect_low(judge_on(machine_of({facts}), to_gpu(), 40), words);
  }
  auto idle = h100_facts();
  idle.throttle_reasons = 0x1;
  expect_low(judge_on(machine_of({idle}), to_gpu(), 40), "unexplained");
}

TEST(Judgement, SlowMemoryClock) {
  auto facts = h100_facts();
  facts.memory_clock_mhz = 1593;
  expect_low(judge_on(machine_of({facts}), path_of(gpu_place(0), gpu_place(0), by_ce()), 880), "1593 of 2619 MHz");
}

TEST(Judgement, CountersThatRose) {
  const auto before = machine_of({h100_facts()});
  const auto judge_after = [&](void (*change)(gpu_link_facts&)) {
    auto after = before;
    change(after.gpus[0]);
    measurement_context known;
    known.before = &before, known.after = &after;
    return judge_on(before, to_gpu(), 40, known);
  };
  expect_low(judge_after([](gpu_link_facts& g) { g.pcie_replays = 7; }), "7 PCIe packets again");
  expect_low(judge_after([](gpu_link_facts& g) { g.pcie_corrected = 2; }), "2 corrected PCIe errors");
  expect_low(judge_after([](gpu_link_facts& g) { g.ecc_uncorrected = 1; }), "ECC");
  expect_low(judge_after([](gpu_link_facts&) {}), "unexplained");
}

TEST(Judgement, SmallBar1ForTheCpuOnly) {
  auto facts = h100_facts();
  facts.bar1_bytes = 256u << 20;
  const auto links = machine_of({facts});
  expect_low(judge_on(links, path_of(host_place(), gpu_place(0), by_bar(4)), 20), "Resizable BAR");
  expect_low(judge_on(links, to_gpu(), 40), "unexplained");
}

TEST(Judgement, TranslatedPeerTraffic) {
  auto links = machine_of({h100_facts(), h100_facts()});
  const auto path = path_of(gpu_place(0), gpu_place(1), by_ce());
  links.gpus[1].behind_iommu = true;
  expect_low(judge_on(links, path, 20), "IOMMU");
  links.gpus[0].acs_redirect = true;
  expect_low(judge_on(links, path, 20), "ACS");
}

TEST(Judgement, OtherProcesses) {
  auto facts = h100_facts();
  facts.other_processes = 2;
  expect_low(judge_on(machine_of({facts}), to_gpu(), 40), "2 other processes on GPU 0");
}

// 64 KiB in 9.5 us, as measured: 7 us before the first byte, 1.2 us for all of them.
TEST(Judgement, SmallBuffer) {
  const auto got = judge_on(machine_of({h100_facts()}), to_gpu(64 << 10), 6.88);
  expect_low(got, "buffer of 64 KiB: start-up of 7 us dominates; use -b 16M or more");
}

TEST(Judgement, Variation) {
  measurement_context known;
  known.coefficient_of_variation = 0.12;
  known.attempts = 3;
  const auto busy = judge_on(machine_of({h100_facts()}), to_gpu(), 40, known);
  EXPECT_EQ(busy.level, verdict_level::suspicious);
  EXPECT_TRUE(busy.is_varied);
  EXPECT_NE(busy.reason.find("vary by 12 % in the last of 3 runs"), std::string::npos) << busy.reason;
  EXPECT_EQ(judge_on(machine_of({h100_facts()}), to_gpu(), 54, known).level, verdict_level::good);
  // What the link itself shows is a reason, however the samples vary.
  auto trained_down = h100_facts();
  trained_down.pcie_width_now = 8;
  const auto link = judge_on(machine_of({trained_down}), to_gpu(), 25, known);
  EXPECT_EQ(link.level, verdict_level::low);
  EXPECT_FALSE(link.is_varied);
}

TEST(Judgement, SharedUplink) {
  auto links = machine_of({h100_facts(), h100_facts()});
  for (auto& gpu : links.gpus) gpu.uplink_generation = 5, gpu.uplink_width = 16, gpu.uplink_bus_id = "0000:16:00.0";
  expect_low(judge_on(links, to_gpu(), 27), "shares the uplink 0000:16:00.0 with GPU 1");
}

TEST(Judgement, UnexplainedIsSuspiciousWhenFarOff) {
  const auto links = machine_of({h100_facts()});
  expect_low(judge_on(links, to_gpu(), 40), "unexplained: PCIe 5.0 x16 should give 54.9 GB/s");
  const auto got = judge_on(links, to_gpu(), 20);
  EXPECT_EQ(got.level, verdict_level::suspicious);
  EXPECT_NEAR(got.ratio, 20 / 54.9, 0.01);
}

TEST(Judgement, FasterThanTheLink) {
  const auto links = machine_of({h100_facts()});
  auto got = judge_on(links, to_gpu(), 90);
  EXPECT_EQ(got.level, verdict_level::suspicious);
  EXPECT_NE(got.reason.find("faster than the link"), std::string::npos);
  got = judge_on(links, path_of(gpu_place(0), gpu_place(0), by_ce(), 8 << 20), 2500);
  EXPECT_NE(got.reason.find("fits the L2 cache"), std::string::npos) << got.reason;
}

TEST(Judgement, NoValueIsSuspicious) {
  EXPECT_EQ(judge_on(machine_of({h100_facts()}), to_gpu(), 0).level, verdict_level::suspicious);
}

TEST(Judgement, LatenciesAreBetterWhenLess) {
  const auto links = machine_of({h100_facts()});
  auto path = path_of(host_place(), gpu_place(0), by_sm(), 2 << 20);
  path.measured_quantity = transfer_path::quantity::latency;
  EXPECT_EQ(judge_on(links, path, 700).level, verdict_level::good);
  measurement_context known;
  known.host_node = 1;
  expect_low(judge_on(links, path, 1600, known), "wrong NUMA node");
  path = path_of(gpu_place(0), host_place(), by_bar(1), 8);
  path.measured_quantity = transfer_path::quantity::latency;
  EXPECT_EQ(judge_on(links, path, 1066).level, verdict_level::good);
  EXPECT_EQ(judge_on(links, path, 9000).level, verdict_level::suspicious);
}

}  // namespace
}  // namespace pl::bandwidth
