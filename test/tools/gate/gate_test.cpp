// SPDX-License-Identifier: Apache-2.0
// Verdicts of machines that are described, not had.
#include "tools/gate/gate.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <random>

namespace pl::gate {
namespace {

machine_state two_gpus() {
  machine_state out;
  out.driver_version = "580.95.05";
  out.xids.emplace();
  for (int gpu = 0; gpu < 2; ++gpu) {
    bandwidth::gpu_link_facts facts;
    facts.name = "NVIDIA H100 80GB HBM3";
    facts.bus_id = gpu == 0 ? "0000:0a:00.0" : "0000:0b:00.0";
    facts.pcie_generation_now = 1;  // idle
    facts.pcie_generation_max = 5;
    facts.pcie_width_now = facts.pcie_width_max = 16;
    facts.nvlinks_active = facts.nvlinks_total = 18;
    facts.sm_clock_max_mhz = 1980;
    facts.memory_clock_max_mhz = 2619;
    facts.bar1_bytes = 128ull << 30;
    facts.memory_bytes = 80ull << 30;
    facts.numa_node = gpu;
    out.links.gpus.push_back(facts);
    out.health.emplace_back().has_nvml = true;
  }
  return out;
}

reading rate(const char* name, int gpu, double value, int peer = -1) {
  reading out;
  out.name = name;
  out.gpu = gpu;
  out.peer = peer;
  out.value = value;
  out.samples = {value * 0.999, value, value * 1.001};
  return out;
}

baseline learnt_from(const machine_state& machine) {
  std::vector<std::vector<reading>> runs;
  for (const double factor : {0.99, 1.0, 1.01, 1.0, 0.995, 1.005})
    runs.push_back({rate("h2d", 0, 55 * factor), rate("h2d", 1, 54 * (2 - factor)), rate("p2p", 0, 390 * factor, 1)});
  return learn(machine, runs);
}

std::vector<std::string> unfit(const std::vector<finding>& findings) {
  std::vector<std::string> out;
  for (const finding& one : findings)
    if (one.severity == level::unfit) out.push_back(one.check + std::to_string(one.gpu));
  return out;
}
using names = std::vector<std::string>;

TEST(GateState, AHealthyMachineIsFitWithAndWithoutABaseline) {
  const auto machine = two_gpus();
  const auto known = learnt_from(machine);
  EXPECT_EQ(unfit(judge_state(machine, nullptr)), names{});
  EXPECT_EQ(unfit(judge_state(machine, &known)), names{});
}

TEST(GateState, EachFaultIsFoundByItself) {
  const auto good = two_gpus();
  const auto known = learnt_from(good);
  const auto found = [&](const char* check, auto&& spoil) {
    machine_state bad = good;
    spoil(bad);
    EXPECT_EQ(unfit(judge_state(bad, &known)), names{check});
  };
  found("ecc1", [](machine_state& m) { m.links.gpus[1].ecc_uncorrected = 1; });
  found("ecc0", [](machine_state& m) { m.health[0].rows_pending = true; });
  found("ecc0", [](machine_state& m) { m.health[0].rows_failed = true; });
  found("pcie_link0", [](machine_state& m) { m.links.gpus[0].pcie_width_now = 8; });
  found("pcie_link0", [](machine_state& m) { m.links.gpus[0].pcie_generation_max = 4; });
  found("nvlink1", [](machine_state& m) { m.links.gpus[1].nvlinks_active = 17; });
  found("clocks0", [](machine_state& m) { m.links.gpus[0].sm_clock_max_mhz = 1200; });
  found("clocks0", [](machine_state& m) { m.links.gpus[0].throttle_reasons = 0x40; });
  found("bar11", [](machine_state& m) { m.links.gpus[1].bar1_bytes = 256u << 20; });
  found("bar11", [](machine_state& m) { m.links.gpus[1].memory_bytes -= 1u << 30; });
  found("numa0", [](machine_state& m) { m.links.gpus[0].numa_node = 1; });
  found("xid1", [](machine_state& m) { m.xids = {{"0000:0b:00", 79}}; });
  found("gpus-1", [](machine_state& m) { m.links.gpus.pop_back(), m.health.pop_back(); });
  // Not faults: an idle clock, a program's own error.
  machine_state busy = good;
  busy.xids = {{"0000:0b:00", 13}, {"0000:0b:00", 43}};
  busy.links.gpus[0].throttle_reasons = 0x1;
  EXPECT_EQ(unfit(judge_state(busy, &known)), names{});
}

TEST(GateState, WhatWasThereWhenLearntIsNoFault) {
  auto machine = two_gpus();
  machine.links.gpus[0].ecc_uncorrected = 3;
  machine.links.gpus[0].pcie_width_now = 8;
  machine.xids = {{"0000:0a:00", 95}};
  const auto known = learnt_from(machine);
  EXPECT_EQ(unfit(judge_state(machine, &known)), names{});
  EXPECT_EQ(unfit(judge_state(machine, nullptr)), (names{"ecc0", "pcie_link0", "xid0"}));
  machine.links.gpus[0].ecc_uncorrected = 4;
  EXPECT_EQ(unfit(judge_state(machine, &known)), names{"ecc0"});
}

TEST(GateReadings, ALowRateIsUnfitAndANoisyOneIsNot) {
  const auto machine = two_gpus();
  const auto known = learnt_from(machine);
  const auto judged = [&](double h2d) {
    return unfit(judge_readings(machine, {rate("h2d", 0, h2d), rate("h2d", 1, 54), rate("p2p", 0, 390, 1)}, &known, {}));
  };
  EXPECT_EQ(judged(55), names{});
  EXPECT_EQ(judged(53.5), names{});
  EXPECT_EQ(judged(27), (names{"h2d0", "rates0"}));
  EXPECT_EQ(judged(80), names{});
  // Another tenant's burst: one sample was as fast as ever.
  reading disturbed = rate("h2d", 0, 27);
  disturbed.samples = {27, 20, 55};
  const auto found = judge_readings(machine, {disturbed}, &known, {});
  EXPECT_EQ(found[0].severity, level::unknown) << found[0].reason;
}

TEST(GateReadings, WrongBytesAndWaysThatEndedAreUnfit) {
  const auto machine = two_gpus();
  auto known = learnt_from(machine);
  reading wrong = rate("local", 0, 0);
  wrong.outcome = reading::state::wrong;
  reading channel = rate("channel", 1, 0);
  channel.outcome = reading::state::unavailable;
  EXPECT_EQ(unfit(judge_readings(machine, {wrong, channel}, &known, {})), (names{"local0", "channel1"}));
  EXPECT_EQ(unfit(judge_readings(machine, {channel}, nullptr, {})), names{});
  known.unavailable = {key_of(machine, channel)};
  EXPECT_EQ(unfit(judge_readings(machine, {channel}, &known, {})), names{});
}

// Both GPUs are slower together from run to run by more than the loss that is looked for.
baseline learnt_by_noise(const machine_state& machine, std::size_t gpus, std::mt19937_64& random) {
  std::normal_distribution<double> together(1, 0.03), single(1, 0.004);
  std::vector<std::vector<reading>> runs;
  for (int run = 0; run < 16; ++run) {
    const double host = together(random);
    auto& readings = runs.emplace_back();
    for (int gpu = 0; gpu < static_cast<int>(gpus); ++gpu)
      for (const char* name : {"h2d", "d2h", "local"}) readings.push_back(rate(name, gpu, 50 * host * single(random)));
  }
  return learn(machine, runs);
}

std::vector<reading> readings_of(double first, double second) {
  std::vector<reading> out;
  for (const char* name : {"h2d", "d2h", "local"}) {
    out.push_back(rate(name, 0, 50 * first));
    out.push_back(rate(name, 1, 50 * second));
  }
  return out;
}

TEST(GateRelative, AGpuThatIsATenthSlowerThanItsNeighbourIsFound) {
  const auto machine = two_gpus();
  std::mt19937_64 random(7);
  const auto known = learnt_by_noise(machine, 2, random);
  EXPECT_EQ(unfit(judge_readings(machine, readings_of(1, 1), &known, {})), names{});
  EXPECT_EQ(unfit(judge_readings(machine, readings_of(1, 0.9), &known, {})), names{"rates1"});
  EXPECT_EQ(unfit(judge_readings(machine, readings_of(0.9, 0.9), &known, {})), names{}) << "the host was busy";
  // One of its samples was as fast as ever.
  auto disturbed = readings_of(1, 0.9);
  for (auto& one : disturbed) one.samples.push_back(50);
  const auto found = judge_readings(machine, disturbed, &known, {});
  EXPECT_TRUE(std::any_of(found.begin(), found.end(), [](const finding& one) {
    return one.check == kRelative && one.gpu == 1 && one.severity == level::unknown;
  }));
}

TEST(GateRelative, ASingleGpuHasItsOwnRatesOnly) {
  auto machine = two_gpus();
  machine.links.gpus.pop_back();
  machine.health.pop_back();
  std::mt19937_64 random(7);
  const auto known = learnt_by_noise(machine, 1, random);
  const auto figures = relative_figures(known);
  ASSERT_EQ(figures.size(), 1u);
  EXPECT_EQ(figures.begin()->second.values.size(), 16u);
  auto low = readings_of(0.6, 1);
  std::erase_if(low, [](const reading& one) { return one.gpu == 1; });
  const auto found = unfit(judge_readings(machine, low, &known, {}));
  EXPECT_NE(std::find(found.begin(), found.end(), "rates0"), found.end());
}

// A run in which a rate could not be measured cannot be compared; nor can a machine without one of its GPUs.
TEST(GateRelative, RunsThatLackARateGiveNoFigure) {
  auto machine = two_gpus();
  std::mt19937_64 random(7);
  auto known = learnt_by_noise(machine, 2, random);
  machine.links.gpus.pop_back();
  machine.health.pop_back();
  auto left = readings_of(1, 1);
  std::erase_if(left, [](const reading& one) { return one.gpu == 1; });
  EXPECT_TRUE(judge_relative(machine, left, known, 1e-5).empty());
  known.figures.begin()->second.values.pop_back();
  EXPECT_TRUE(relative_figures(known).empty());
}

// The chance that was asked for is the chance that comes here too.
TEST(GateRelative, FalseAlarmsComeAsOftenAsAsked) {
  const auto machine = two_gpus();
  std::mt19937_64 random(3);
  std::normal_distribution<double> single(1, 0.004);
  int alarms = 0;
  constexpr int kMachines = 2000;
  for (int i = 0; i < kMachines; ++i) {
    const auto known = learnt_by_noise(machine, 2, random);
    auto now = readings_of(1, 1);
    for (auto& one : now) one = rate(one.name.c_str(), one.gpu, 50 * single(random));
    const auto found = judge_relative(machine, now, known, 0.02);
    alarms += found[0].severity != level::ok;
  }
  EXPECT_LT(alarms, kMachines * 0.03);
}

TEST(GateThreshold, QuantilesOfStudentsT) {
  EXPECT_NEAR(t_quantile(0.025, 10), 2.2281, 1e-4);
  EXPECT_NEAR(t_quantile(0.001, 5), 5.8934, 1e-3);
  EXPECT_NEAR(t_quantile(0.05, 1), 6.3138, 1e-3);
  EXPECT_NEAR(t_quantile(1e-6, 7), 14.2415, 1e-3);
}

TEST(GateThreshold, FewRunsGiveNone) {
  EXPECT_FALSE(least_value({{10, 10}, 0.1}, 1e-4));
  EXPECT_TRUE(least_value({{10, 10, 10}, 0.1}, 1e-4));
  EXPECT_LT(*least_value({{10, 10, 10}, 0.1}, 1e-4), 10);  // the scatter inside the runs counts too
}

// The chance that was asked for is the chance that comes: a healthy machine, seeded noise.
TEST(GateThreshold, FalseAlarmsComeAsOftenAsAsked) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> noise(50, 0.5);
  int alarms = 0;
  constexpr int kMachines = 20'000;
  for (int machine = 0; machine < kMachines; ++machine) {
    baseline_figures known;
    for (int run = 0; run < 8; ++run) known.values.push_back(noise(random));
    alarms += noise(random) < *least_value(known, 0.01) ? 1 : 0;
  }
  EXPECT_GT(alarms, kMachines * 0.007);
  EXPECT_LT(alarms, kMachines * 0.013);
}

TEST(GateBaseline, IsWhatWasWritten) {
  const auto machine = two_gpus();
  const auto known = learnt_from(machine);
  const auto again = parse_baseline(to_json(known).dump());
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(to_json(*again), to_json(known));
  const auto both = joined(known, known);
  ASSERT_TRUE(both);
  EXPECT_EQ(both->figures.begin()->second.values.size(), 12u);
  auto other = known;
  other.driver_version = "590";
  EXPECT_FALSE(joined(known, other));
  for (
      const char* text :
      {"", "{}", "[1]", R"({"schema":"peerlane-gate-baseline/1"})", R"({"schema":5})",
       R"({"schema":"peerlane-gate-baseline/1","driver_version":"1","simulated":false,"gpus":{},"figures":{},"unavailable":[]})",
       R"({"schema":"peerlane-gate-baseline/1","driver_version":"1","simulated":false,"gpus":{"a":{}},"figures":{},"unavailable":[]})"}) {
    const auto bad = parse_baseline(text);
    ASSERT_FALSE(bad) << text;
    EXPECT_NE(bad.error().message.find("--learn"), std::string::npos);
  }
}

// Figures that would let every machine pass.
TEST(GateBaseline, FiguresThatNoMachineHasAreRefused) {
  const auto known = learnt_from(two_gpus());
  for (const double bad : {-1e9, 0.0}) {
    auto changed = known;
    changed.figures.begin()->second.values.front() = bad;
    EXPECT_FALSE(parse_baseline(to_json(changed).dump())) << bad;
  }
  auto changed = known;
  changed.figures.begin()->second.sample_scatter = -1;
  EXPECT_FALSE(parse_baseline(to_json(changed).dump()));
  // Runs that differ without end give no limit, which the gate says.
  EXPECT_FALSE(least_value({{1, 1000, 50}, 0}, 1e-4));
  EXPECT_FALSE(least_value({{10, 10, 10}, 1e9}, 1e-4));
}

TEST(GateBaseline, AFileThatOthersMayWriteIsRefused) {
  std::string path = testing::TempDir() + "gate-baseline-XXXXXX";
  const int file = mkstemp(path.data());
  ASSERT_GE(file, 0);
  const std::string text = to_json(learnt_from(two_gpus())).dump();
  ASSERT_EQ(write(file, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  close(file);
  EXPECT_TRUE(load_baseline(path));
  ASSERT_EQ(chmod(path.c_str(), 0646), 0);
  EXPECT_EQ(load_baseline(path).code(), EACCES);
  if (geteuid() == 0) {
    ASSERT_EQ(chmod(path.c_str(), 0644), 0);
    ASSERT_EQ(chown(path.c_str(), 65534, 65534), 0);
    EXPECT_EQ(load_baseline(path).code(), EACCES);
  }
  unlink(path.c_str());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_FALSE(load_baseline(path)) << "nobody writes into it, so nobody waits for it";
  unlink(path.c_str());
}

TEST(GateXid, LinesOfTheKernelsLog) {
  const std::string log =
      "6,1234,5678,-;NVRM: Xid (PCI:0000:0b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
      "NVRM: Xid (PCI:0000:0a:00): 13, Graphics Exception\nNVRM: Xid (PCI:0000:0a:00): , broken\nNVRM: Xid (PCI:0000\n"
      "something else\n[ 12.3] NVRM: Xid (PCI:0001:0a:00): 48, pid=1";
  EXPECT_EQ(parse_xids(log), (std::vector<xid_event>{{"0000:0b:00", 79}, {"0000:0a:00", 13}, {"0001:0a:00", 48}}));
  EXPECT_TRUE(parse_xids("").empty());
}

TEST(GateXid, WhatNvidiasCatalogueWantsRepaired) {
  for (const unsigned number : {46u, 48u, 54u, 62u, 64u, 74u, 79u, 95u, 109u, 119u, 120u, 140u, 143u, 156u, 158u})
    EXPECT_TRUE(needs_repair({"", number})) << number;
  // Programs' errors; a copy engine's, that ends its program; remapped rows, contained and corrected errors, which are
  // handled.
  for (const unsigned number : {13u, 31u, 43u, 45u, 61u, 63u, 71u, 92u, 94u, 121u, 137u, 145u, 154u, 157u})
    EXPECT_FALSE(needs_repair({"", number})) << number;
  const auto wants = [](const char* text) {
    return needs_repair(parse_xids(std::string("NVRM: Xid (PCI:0000:0b:00): ") + text).at(0));
  };
  EXPECT_FALSE(wants("145, RLW_REMAP Nonfatal XC0 i0 Link 01 (0x00000004 0x00000001)"));
  EXPECT_TRUE(wants("149, NETIR_LINK_EVT Fatal XC0 i0 Link 03 (0x004505c6 0x00000000)"));
  EXPECT_TRUE(wants("154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"));
  EXPECT_FALSE(wants("154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"));
}

TEST(GateOutput, OneLineNamesTheCauseFirst) {
  outcome result;
  result.worst = level::unfit;
  result.findings = {{level::unfit, "pcie_link", 0, "PCIe x8, learnt x16", 0, 0},
                     {level::unfit, "h2d", 0, "slow\nindeed", 1, 2}};
  EXPECT_EQ(one_line(result, 2), "unfit: GPU 0: PCIe x8, learnt x16 (1 more)");
  std::swap(result.findings[0], result.findings[1]);
  EXPECT_EQ(one_line(result, 2).find('\n'), std::string::npos);
  const std::string text = prometheus_text(result, two_gpus());
  EXPECT_NE(text.find("\npeerlane_gate_fit 0\n"), std::string::npos) << text;
  EXPECT_NE(text.find("peerlane_gate_check{check=\"pcie_link\",gpu=\"0000:0a:00.0\"} 3\n"), std::string::npos) << text;
  result = {};
  EXPECT_EQ(one_line(result, 1).substr(0, 10), "fit: 1 GPU");
}

}  // namespace
}  // namespace pl::gate
