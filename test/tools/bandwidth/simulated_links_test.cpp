// SPDX-License-Identifier: Apache-2.0
// From the machine's links to a verdict, on the simulated GPU: measured copies, read facts, no value made up.
//
// Rates are slow, so that this CPU keeps up with them: links of 1 GB/s, whose model expects 0.8 of it. Each case runs
// in a process of its own under ctest, as the simulated GPU reads its rates once; run by hand, they need --gtest_filter.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "test/tools/bandwidth/bandwidth_fixture.hpp"
#include "tools/bandwidth/judgement.hpp"

namespace pl::bandwidth::test {
namespace {

constexpr std::uint64_t kLinkBytes = 4u << 20;

class SimulatedLinks : public testing::Test {
 protected:
  // Before the first call into the simulated GPU.
  void start(const char* links, const char* rates) {
    setenv("PEERLANE_SIM_LINKS", links, 1);
    setenv("PEERLANE_SIM_RATES", rates, 1);
    machine_ = std::make_unique<machine>();
    before_ = read_links(*machine_->gpus);
    if (*rates != 0 && !before_.has_rates)
      GTEST_SKIP() << "another case of this process has opened the simulated GPU without rates";
  }

  verdict measure(const place& source, const place& destination, std::uint64_t bytes = kLinkBytes) {
    const executor executor{executor_kind::ce, 0, 0};
    const auto bound = machine_->transfer(source, destination, executor, bytes);
    auto settings = quick();
    settings.verify = false;
    const auto got = must(machine_->run.run(std::span(&bound, 1), settings));
    const auto after = read_links(*machine_->gpus);
    transfer_path path;
    path.source = source, path.destination = destination, path.executor = executor, path.bytes = bytes;
    path.is_local_copy = source == destination;
    const auto expected = expect(before_, path);
    if (!expected) return {verdict_level::suspicious, 0, "no expectation"};
    measurement_context known;
    known.before = &before_, known.after = &after;
    known.host_node = machine_->pool.node_of(source.type == place::kind::host ? bound.source : bound.destination);
    const auto& samples = got.each[0].own_gb_per_s;
    value_ = *std::max_element(samples.begin(), samples.end());
    return judge(value_, *expected, path, known);
  }
  // A busy machine may be too slow for a link, so the best of some tries counts; none may be faster.
  void expect_good(const place& source, const place& destination, double rate) {
    verdict got;
    for (int tries = 0; tries < 20; ++tries) {
      got = measure(source, destination);
      EXPECT_LE(value_, rate * 1.01);
      if (got.level == verdict_level::good) return;
    }
    ADD_FAILURE() << value_ << " GB/s: " << got.reason;
  }
  static void expect_low(const verdict& got, const char* words) {
    EXPECT_EQ(got.level, verdict_level::low) << got.reason;
    EXPECT_NE(got.reason.find(words), std::string::npos) << got.reason;
  }

  std::unique_ptr<machine> machine_;
  machine_links before_;
  double value_ = 0;
};

constexpr const char* kSlowLink = "pcie=1x4/1x4,nvlink=none";

TEST_F(SimulatedLinks, RatesOfTheModelAreGood) {
  start(kSlowLink, "h2d=0.85,d2h=0.85,p2p=0.85");
  expect_good(host_place(), gpu_place(0), 0.85);
  expect_good(gpu_place(0), host_place(), 0.85);
  expect_good(gpu_place(0), gpu_place(1), 0.85);
}

TEST_F(SimulatedLinks, FarMemoryIsLow) {
  start(kSlowLink, "h2d=0.85,d2h=0.85,far=0.5");
  EXPECT_EQ(before_.numa_nodes, 2);
  expect_good(host_place(host_kind::pinned, 0), gpu_place(0), 0.85);
  expect_low(measure(host_place(host_kind::pinned, 1), gpu_place(0)), "wrong NUMA node");
  expect_low(measure(gpu_place(0), host_place(host_kind::pinned, 1)), "wrong NUMA node");
}

TEST_F(SimulatedLinks, TrainedDownLinkIsLow) {
  start("pcie=1x2/1x4,nvlink=none", "h2d=0.4,d2h=0.4");
  expect_low(measure(host_place(), gpu_place(0)), "trained down: PCIe 1.0 x2 of PCIe 1.0 x4");
}

TEST_F(SimulatedLinks, DefaultBoardTrainedDownToGeneration3) {
  start("pcie=3x8", "h2d=1,d2h=1");
  expect_low(measure(host_place(), gpu_place(0)), "trained down: PCIe 3.0 x8 of PCIe 5.0 x16");
}

TEST_F(SimulatedLinks, SmallBufferIsLow) {
  start("nvlink=none", "h2d=1,d2h=1");
  expect_low(measure(host_place(), gpu_place(0), 64 << 10), "buffer of 64 KiB: start-up of 7 us dominates");
}

TEST_F(SimulatedLinks, ReplaysBetweenTwoLooks) {
  start(kSlowLink, "h2d=0.4,d2h=0.4");
  setenv("PEERLANE_SIM_LINKS", "pcie=1x4/1x4,nvlink=none,replays=9", 1);
  expect_low(measure(host_place(), gpu_place(0)), "9 PCIe packets again");
}

TEST_F(SimulatedLinks, MissingNvlinks) {
  start("nvlink=1x1/2", "p2p=0.5");
  EXPECT_EQ(before_.gpus[0].nvlinks_active, 1u);
  EXPECT_EQ(before_.gpus[0].nvlinks_total, 2u);
  expect_low(measure(gpu_place(0), gpu_place(1)), "NVLinks missing: GPU 0 has 1 of 2");
}

TEST_F(SimulatedLinks, NothingIsExpectedWithoutRates) {
  start("", "");
  if (before_.has_rates) GTEST_SKIP() << "another case of this process has set rates";
  EXPECT_EQ(measure(host_place(), gpu_place(0)).reason, "no expectation");
  EXPECT_FALSE(before_.remarks.empty());
  EXPECT_EQ(before_.gpus[0].pcie_generation_max, 5u);
  EXPECT_EQ(before_.gpus[0].nvlinks_active, 18u);
}

}  // namespace
}  // namespace pl::bandwidth::test
