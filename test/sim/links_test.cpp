// SPDX-License-Identifier: Apache-2.0
// Links with a speed, and the management library that describes them.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "base/clock.hpp"
#include "cuda/driver_abi.hpp"
#include "cuda/nvml_abi.hpp"
#include "sim/settings.hpp"
#include "test/support/comma_locale.hpp"

extern "C" {
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(pl::cu::context_t*, int);
int cuCtxSetCurrent(pl::cu::context_t);
int cuMemAlloc_v2(pl::cu::device_ptr*, std::size_t);
int cuMemFree_v2(pl::cu::device_ptr);
int cuMemHostRegister_v2(void*, std::size_t, unsigned);
int cuMemHostUnregister(void*);
int cuMemcpyAsync(pl::cu::device_ptr, pl::cu::device_ptr, std::size_t, pl::cu::stream_t);
int cuCtxSynchronize();
int cuStreamCreate(pl::cu::stream_t*, unsigned);
void peerlaneSimSetHostNode(const void*, std::size_t, int);
int peerlaneSimHostNode(const void*);
int peerlaneSimDeviceNode(int);
int peerlaneSimNodeCount();
int peerlaneSimHasRates();
}

namespace pl::sim {
namespace {

constexpr std::size_t kBytes = 4'000'000;

// Set before the first call into the simulated GPU, which reads it once.
const bool g_environment_is_set = [] {
  setenv("PEERLANE_SIM_DEVICES", "2", 1);
  setenv("PEERLANE_SIM_MEMORY", "512M", 1);
  setenv("PEERLANE_SIM_RATES", "h2d=1,d2h=0.5,p2p=2,local=4,far=0.5", 1);
  setenv("PEERLANE_SIM_LINKS", "0:pcie=3x8;1:numa=1", 1);
  return true;
}();

class Links : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(g_environment_is_set);
    ASSERT_EQ(cuInit(0), 0);
    for (int i : {1, 0}) {
      ASSERT_EQ(cuDevicePrimaryCtxRetain(&contexts_[i], i), 0);
      ASSERT_EQ(cuCtxSetCurrent(contexts_[i]), 0);
      ASSERT_EQ(cuMemAlloc_v2(&device_[i], kBytes), 0);
    }
    host_ = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(host_, MAP_FAILED);
    ASSERT_EQ(cuMemHostRegister_v2(host_, kBytes, 1), 0);
    copy_ns(device_[0], host(), 1);  // pages are there from now on
    copy_ns(host(), device_[1], 1);
  }
  void TearDown() override {
    cuMemHostUnregister(host_);
    munmap(host_, kBytes);
    for (const auto base : device_) cuMemFree_v2(base);
  }
  cu::device_ptr host() const { return reinterpret_cast<cu::device_ptr>(host_); }
  static double copy_ns(cu::device_ptr destination, cu::device_ptr source, int times) {
    const auto start_ns = monotonic_ns();
    for (int i = 0; i < times; ++i) cuMemcpyAsync(destination, source, kBytes, nullptr);
    cuCtxSynchronize();
    return static_cast<double>(monotonic_ns() - start_ns);
  }
  // The best of some tries is the link's time: on a busy machine one may come late, none may come early.
  static void expect_rate(cu::device_ptr destination, cu::device_ptr source, double gb_per_s) {
    const double wanted_ns = 2 * kBytes / gb_per_s;
    double best_ns = copy_ns(destination, source, 2);
    for (int i = 0; i < 30 && best_ns > 1.2 * wanted_ns; ++i) best_ns = std::min(best_ns, copy_ns(destination, source, 2));
    EXPECT_GE(best_ns, wanted_ns);
    EXPECT_LE(best_ns, 1.5 * wanted_ns);
  }

  cu::context_t contexts_[2]{};
  cu::device_ptr device_[2]{};
  void* host_ = nullptr;
};

TEST_F(Links, CopiesTakeTheirTime) {
  EXPECT_EQ(peerlaneSimHasRates(), 1);
  expect_rate(device_[0], host(), 1);
  expect_rate(host(), device_[0], 0.5);
  expect_rate(device_[1], device_[0], 2);
}

TEST_F(Links, FarMemoryIsSlower) {
  peerlaneSimSetHostNode(host_, kBytes, 1);
  expect_rate(device_[0], host(), 0.5);
  expect_rate(device_[1], host(), 1);
}

TEST_F(Links, CopiesShareALink) {
  cu::stream_t streams[2];
  for (auto& one : streams) ASSERT_EQ(cuStreamCreate(&one, 1), 0);
  const auto start_ns = monotonic_ns();
  for (const auto one : streams) cuMemcpyAsync(device_[0], host(), kBytes, one);
  cuCtxSynchronize();
  EXPECT_GE(static_cast<double>(monotonic_ns() - start_ns), 2.0 * kBytes);
}

TEST_F(Links, NodesOfMemory) {
  const auto* bytes = static_cast<const char*>(host_);
  EXPECT_EQ(peerlaneSimHostNode(bytes), -1);
  peerlaneSimSetHostNode(bytes, 3000, 1);
  peerlaneSimSetHostNode(bytes + 1000, 1000, 0);
  EXPECT_EQ(peerlaneSimHostNode(bytes + 999), 1);
  EXPECT_EQ(peerlaneSimHostNode(bytes + 1000), 0);
  EXPECT_EQ(peerlaneSimHostNode(bytes + 2000), 1);
  EXPECT_EQ(peerlaneSimHostNode(bytes + 3000), -1);
  ASSERT_EQ(cuMemHostUnregister(host_), 0);  // forgotten with the registration
  EXPECT_EQ(peerlaneSimHostNode(bytes), -1);
  ASSERT_EQ(cuMemHostRegister_v2(host_, kBytes, 1), 0);
  EXPECT_EQ(peerlaneSimDeviceNode(0), 0);
  EXPECT_EQ(peerlaneSimDeviceNode(1), 1);
  EXPECT_EQ(peerlaneSimNodeCount(), 2);
}

// ---- What NVML says ---------------------------------------------------------------------------------------------------

class Nvml : public testing::Test {
 protected:
  void SetUp() override {
    library_ = dlopen(PL_SIM_NVML, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << dlerror();
    ASSERT_EQ(call<int()>("nvmlInit_v2")(), 0);
  }
  template <class Function>
  Function* call(const char* name) {
    auto* const found = reinterpret_cast<Function*>(dlsym(library_, name));
    EXPECT_NE(found, nullptr) << name;
    return found;
  }
  void* device(const char* bus_id) {
    void* out = nullptr;
    EXPECT_EQ(call<int(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2")(bus_id, &out), 0);
    return out;
  }
  unsigned number(const char* name, void* handle) {
    unsigned out = 0;
    EXPECT_EQ(call<int(void*, unsigned*)>(name)(handle, &out), 0) << name;
    return out;
  }
  void* library_ = nullptr;
};

TEST_F(Nvml, DescribesTheBoards) {
  void* const first = device("0000:fe:00.0");
  EXPECT_EQ(number("nvmlDeviceGetCurrPcieLinkGeneration", first), 3u);
  EXPECT_EQ(number("nvmlDeviceGetCurrPcieLinkWidth", first), 8u);
  EXPECT_EQ(number("nvmlDeviceGetMaxPcieLinkGeneration", first), 5u);
  EXPECT_EQ(number("nvmlDeviceGetMaxPcieLinkWidth", device("00000000:FE:01.0")), 16u);
  EXPECT_EQ(number("nvmlDeviceGetMemoryBusWidth", first), 5120u);
  nvml::field_value fields[2]{};
  fields[0].field = nvml::kFieldNvlinkMbps, fields[1].field = 1;
  EXPECT_EQ((call<int(void*, int, nvml::field_value*)>("nvmlDeviceGetFieldValues")(first, 2, fields)), 0);
  EXPECT_EQ(fields[0].rc, 0);
  EXPECT_EQ(fields[0].value.as_unsigned, 26562u);
  EXPECT_EQ(fields[1].rc, nvml::code::not_supported);
  int state = 0;
  EXPECT_EQ((call<int(void*, unsigned, int*)>("nvmlDeviceGetNvLinkState")(first, 17, &state)), 0);
  EXPECT_EQ(state, 1);
  EXPECT_NE((call<int(void*, unsigned, int*)>("nvmlDeviceGetNvLinkState")(first, 18, &state)), 0);
}

TEST_F(Nvml, RefusesWhatIsNotThere) {
  void* out = nullptr;
  EXPECT_EQ((call<int(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2")("0000:fe:02.0", &out)),
            nvml::code::not_found);
  EXPECT_NE((call<int(void*, unsigned*)>("nvmlDeviceGetPcieReplayCounter")(&out, nullptr)), 0);
}

TEST_F(Nvml, ANewLookReadsTheEnvironmentAgain) {
  void* const before = device("0000:fe:00.0");
  EXPECT_EQ(number("nvmlDeviceGetPcieReplayCounter", before), 0u);
  const std::string kept = getenv("PEERLANE_SIM_LINKS");
  setenv("PEERLANE_SIM_LINKS", "replays=5", 1);
  EXPECT_EQ(number("nvmlDeviceGetPcieReplayCounter", device("0000:fe:00.0")), 5u);
  setenv("PEERLANE_SIM_LINKS", kept.c_str(), 1);
}

// ---- What may stand in the environment --------------------------------------------------------------------------------

TEST(Settings, LinksForAllAndForOne) {
  const auto got = parse_links("pcie=4x8,numa=0;1:nvlink=4x17/18,throttle=0x44,bar1=256M,hbm=6144@1593/3201,sm=1200", 2);
  ASSERT_TRUE(got);
  EXPECT_EQ((*got)[0].pcie_generation, 4u);
  EXPECT_EQ((*got)[0].pcie_generation_max, 5u);
  EXPECT_EQ((*got)[0].nvlinks, 18u);
  EXPECT_EQ((*got)[1].pcie_width, 8u);
  EXPECT_EQ((*got)[1].nvlinks, 17u);
  EXPECT_EQ((*got)[1].nvlinks_max, 18u);
  EXPECT_EQ((*got)[1].throttle, 0x44u);
  EXPECT_EQ((*got)[1].bar1_bytes, 256u << 20);
  EXPECT_EQ((*got)[1].memory_mhz, 1593u);
  EXPECT_EQ((*got)[1].memory_mhz_max, 3201u);
  EXPECT_EQ((*got)[1].sm_mhz_max, 1200u);
  EXPECT_EQ((*parse_links("pcie=1x4/1x4", 1))[0].pcie_generation_max, 1u);
  EXPECT_EQ((*parse_links("nvlink=none", 1))[0].nvlinks_max, 0u);
  EXPECT_TRUE(parse_links("7:pcie=3x8", 2));  // a board that is not there
}

TEST(Settings, WhatIsNotUnderstoodIsRefused) {
  for (const char* text :
       {"pcie", "pcie=", "pcie=7x16", "pcie=5x", "pcie=5x16/", "pcie=5x16 ", "speed=3", "nvlink=4x19", "nvlink=4x9/8",
        "hbm=5120", "throttle=5", "throttle=0xg", "numa=-1", "x:numa=1", "numa=0,,sm=1", "numa=0;", "bar1=0", "switch=2"})
    EXPECT_FALSE(parse_links(text, 2)) << text;
  for (const char* text : {"h2d", "h2d=", "h2d=0", "h2d=-1", "h2d=1e3", "h2d=2,", "up=3", "h2d=1.2.3", "h2d=1;x:factor=2",
                           "h2d=1;1:h2d=2", "h2d=1;1:factor=0"})
    EXPECT_FALSE(parse_rates(text)) << text;
  EXPECT_DOUBLE_EQ(parse_rates("h2d=2.5,far=0.5")->h2d, 2.5);
  EXPECT_FALSE(parse_rates("far=0.5")->any());
  if (const test::comma_locale chosen; chosen.is_set()) { EXPECT_DOUBLE_EQ(parse_rates("h2d=2.5")->h2d, 2.5); }
  const auto noisy = parse_rates("h2d=2,noise=0.02,seed=7;1:factor=0.5");
  ASSERT_TRUE(noisy);
  EXPECT_DOUBLE_EQ(noisy->noise, 0.02);
  EXPECT_EQ(noisy->seed, 7u);
  EXPECT_DOUBLE_EQ(noisy->board_factors.at(1), 0.5);
}

}  // namespace
}  // namespace pl::sim
