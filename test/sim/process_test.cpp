// SPDX-License-Identifier: Apache-2.0
// What needs several processes or a certain environment: fork, IPC, seeds, devices, symbols.
#include "test/sim/process.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <set>

#include "test/sim/sim_test.hpp"

namespace pl::cu {
namespace {

class Process : public SimTest {};

TEST_F(Process, AForkedChildHasNoDriver) {
  const int result = in_forked_child([] {
    int count = 0;
    device_ptr pointer = 0;
    if (cuInit(0) != error_code::not_initialized) return 1;
    if (cuDeviceGetCount(&count) != error_code::not_initialized) return 2;
    if (cuMemAlloc_v2(&pointer, 8) != error_code::not_initialized) return 3;
    unsigned type = 0;
    if (cuPointerGetAttribute(&type, pointer_attribute::memory_type, 4096) != error_code::not_initialized) return 4;
    return 0;
  });
  EXPECT_EQ(result, 0);
  EXPECT_NE(allocate(8), 0u) << "the parent goes on";
}

TEST(ProcessAlone, AChildMayInitialiseIfTheParentHasNot) {
  EXPECT_EQ(run_child("ProcessChild.ForkBeforeInit", {"PEERLANE_SIM_DEVICES=2"}), 0);
}

TEST_F(Process, NothingWorksWithoutAContext) {
  while (cuCtxPopCurrent_v2(nullptr) == error_code::success) continue;
  device_ptr pointer = 0;
  CU_FAILS(invalid_context, cuMemAlloc_v2(&pointer, 8));
  CU_FAILS(invalid_context, cuCtxSynchronize());
  CU_OK(cuCtxSetCurrent(context_));
}

TEST_F(Process, ContextStackAndPrimaryContext) {
  context_t primary = nullptr;
  context_t again = nullptr;
  CU_OK(cuDevicePrimaryCtxRetain(&primary, 1));
  CU_OK(cuDevicePrimaryCtxRetain(&again, 1));
  EXPECT_EQ(primary, again);
  CU_OK(cuCtxPushCurrent_v2(primary));
  device_t device = -1;
  CU_OK(cuCtxGetDevice(&device));
  EXPECT_EQ(device, 1);
  context_t popped = nullptr;
  CU_OK(cuCtxPopCurrent_v2(&popped));
  EXPECT_EQ(popped, primary);
  CU_OK(cuCtxGetCurrent(&popped));
  EXPECT_EQ(popped, context_);
  unsigned flags = 0;
  int active = 0;
  CU_OK(cuDevicePrimaryCtxRelease_v2(1));
  CU_OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
  EXPECT_EQ(active, 1);
  CU_OK(cuDevicePrimaryCtxRelease_v2(1));
  CU_OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
  EXPECT_EQ(active, 0);
  CU_FAILS(invalid_context, cuDevicePrimaryCtxRelease_v2(1));
  CU_FAILS(invalid_context, cuCtxPushCurrent_v2(primary));
}

TEST_F(Process, DestroyedContextsTakeTheirMemoryWithThem) {
  context_t other = nullptr;
  CU_OK(cuCtxCreate_v2(&other, 0, 0));
  const device_ptr pointer = allocate(4u << 20);
  CU_OK(cuCtxDestroy_v2(other));
  unsigned type = 0;
  CU_FAILS(invalid_value, cuPointerGetAttribute(&type, pointer_attribute::memory_type, pointer));
  CU_FAILS(invalid_context, cuCtxDestroy_v2(other));
}

// ---- between processes ----------------------------------------------------------------------------------------------

TEST_F(Process, IpcHandlesOpenInAnotherProcess) {
  allocate(700);  // so that ours is not at the start of its block
  const device_ptr pointer = allocate(1000);
  CU_OK(cuMemsetD32_v2(pointer, 0xabcd1234, 2));
  ipc_mem_handle_t handle;
  CU_OK(cuIpcGetMemHandle(&handle, pointer));
  std::uint64_t pid = 0;
  std::memcpy(&pid, handle.reserved + 8, 8);
  EXPECT_EQ(pid, static_cast<std::uint64_t>(getpid()));
  EXPECT_EQ(run_child("ProcessChild.OpenIpcHandle", {"PL_TEST_HANDLE=" + to_hex(&handle, sizeof handle)}), 0);
  std::uint32_t words[2];
  CU_OK(cuMemcpyDtoH_v2(words, pointer, 8));
  EXPECT_EQ(words[1], 0x600d600du);
  auto* const open =
      reinterpret_cast<result_t (*)(device_ptr*, ipc_mem_handle_t, unsigned)>(dlsym(RTLD_DEFAULT, "cuIpcOpenMemHandle_v2"));
  device_ptr own = 0;
  CU_FAILS(invalid_context, open(&own, handle, 1)) << "not within one process";
}

// The child's GPU 0 sends to our GPU 1 with late stores: data, then the flag. Everything runs in streams.
TEST_F(Process, LateStoresOfAnotherProcessKeepTheirRules) {
  constexpr std::uint64_t kRounds = 40;
  context_t other = nullptr;
  stream_t receiving = nullptr;
  CU_OK(cuCtxCreate_v2(&other, 0, 1));
  CU_OK(cuStreamCreate(&receiving, stream_flag::non_blocking));
  void* found = nullptr;
  CU_OK(cuMemHostAlloc(&found, kRounds * 64, 0));
  for (const std::uint64_t flags : {0, 1}) {   // 1: the child's flags have no barrier
    const device_ptr shared = allocate(4096);  // data, the flag at 1024, the answer at 2048
    CU_OK(cuMemsetD8_v2(shared, 0, 4096));
    ipc_mem_handle_t handle;
    CU_OK(cuIpcGetMemHandle(&handle, shared));
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      CU_OK(cuStreamWaitValue64_v2(receiving, shared + 1024, round, wait_value::geq));
      CU_OK(cuMemcpyDtoHAsync_v2(static_cast<char*>(found) + 64 * (round - 1), shared, 64, receiving));
      CU_OK(cuStreamWriteValue64_v2(receiving, shared + 2048, round, 0));
    }
    EXPECT_EQ(run_child("ProcessChild.SendLate",
                        {"PL_TEST_HANDLE=" + to_hex(&handle, sizeof handle), "PL_TEST_FLAGS=" + std::to_string(flags),
                         "PL_TEST_ROUNDS=" + std::to_string(kRounds), "PEERLANE_SIM_SEED=5", "PEERLANE_SIM_DELAY=8000"}),
              0);
    CU_OK(cuStreamSynchronize(receiving));
    std::uint64_t stale = 0;
    for (std::uint64_t i = 0; i < kRounds * 8; ++i) stale += static_cast<std::uint64_t*>(found)[i] != i / 8 + 1;
    EXPECT_EQ(stale != 0, flags == 1) << stale << " stale words";
  }
  CU_OK(cuCtxDestroy_v2(other));
}

TEST_F(Process, ShareableHandlesOpenInAnotherProcess) {
  const allocation_prop prop = {
      allocation_type::pinned, handle_type::posix_fd, {location_type::device, 1}, nullptr, {0, 0, 0, {}}};
  physical_t memory = 0;
  CU_OK(cuMemCreate(&memory, 4u << 20, &prop, 0));
  int fd = -1;
  CU_OK(cuMemExportToShareableHandle(&fd, memory, handle_type::posix_fd, 0));
  const std::uint32_t word = 0x12121212;
  ASSERT_EQ(pwrite(fd, &word, 4, 3 << 20), 4);
  const int inherited = dup(fd);  // without close-on-exec
  EXPECT_EQ(run_child("ProcessChild.ImportShareableHandle", {"PL_TEST_FD=" + std::to_string(inherited)}), 0);
  close(inherited);
  close(fd);
  CU_OK(cuMemRelease(memory));
}

TEST(ProcessAlone, FabricHandlesOpenInAnotherProcess) {
  EXPECT_EQ(run_child("ProcessChild.ExportFabricHandle", {"PEERLANE_SIM_FABRIC=on"}), 0);
}

TEST(ProcessAlone, FabricHandlesNeedTheService) {
  EXPECT_EQ(run_child("ProcessChild.FabricWithoutTheService", {"PEERLANE_SIM_FABRIC=no_imex"}), 0);
}

// ---- seeds ----------------------------------------------------------------------------------------------------------

TEST(ProcessAlone, OrderHoldsUnderSeveralSeeds) {
  for (const char* seed : {"1", "2", "77"})
    EXPECT_EQ(run_child("ProcessChild.OrderUnderASeed", {std::string("PEERLANE_SIM_SEED=") + seed}), 0) << seed;
}
TEST(ProcessAlone, EveryOtherTestHoldsUnderASeed) {
  const char* const others = "Streams.*:Graphs.*:Kernels.*:Memory.*:Vmm.*:Export.*";
  EXPECT_EQ(run_self(others, {"PEERLANE_SIM_SEED=4711"}), 0);
  EXPECT_EQ(run_self(others, {"PEERLANE_SIM_SEED=4712", "PEERLANE_SIM_DELAY=100"}), 0) << "and with late stores";
}

// ---- devices and symbols --------------------------------------------------------------------------------------------

TEST_F(Process, DevicesFollowTheEnvironment) {
  uuid_t first{};
  uuid_t second{};
  CU_OK(cuDeviceGetUuid_v2(&first, 0));
  CU_OK(cuDeviceGetUuid_v2(&second, 1));
  EXPECT_NE(std::memcmp(&first, &second, sizeof first), 0);
  const std::string hex = to_hex(&second, sizeof second);
  const std::string text = "GPU-" + hex.substr(0, 8) + "-" + hex.substr(8, 4) + "-" + hex.substr(12, 4) + "-" +
                           hex.substr(16, 4) + "-" + hex.substr(20);
  for (const std::string& visible : {std::string("1"), text, std::string("1,7,0")})
    EXPECT_EQ(run_child("ProcessChild.SecondDeviceOnly",
                        {"PEERLANE_SIM_DEVICES=3", "PEERLANE_SIM_MEMORY=64M", "PEERLANE_SIM_DRIVER_VERSION=12040",
                         "PL_TEST_UUID=" + hex, "CUDA_VISIBLE_DEVICES=" + visible}),
              0)
        << visible;
  EXPECT_EQ(run_child("ProcessChild.NoDevice", {"CUDA_VISIBLE_DEVICES="}), 0);
}

TEST_F(Process, DeviceFacts) {
  const auto value = [](int index) {
    int got = -1;
    EXPECT_EQ(cuDeviceGetAttribute(&got, index, 0), error_code::success);
    return got;
  };
  EXPECT_EQ(value(device_attribute::dma_buf), 1);
  EXPECT_EQ(value(device_attribute::gpu_direct_rdma), 1);
  EXPECT_EQ(value(device_attribute::virtual_memory_management), 1);
  EXPECT_EQ(value(device_attribute::multiprocessor_count), 16);
  EXPECT_EQ(value(device_attribute::pageable_memory_access), 0);
  EXPECT_EQ(value(device_attribute::compute_capability_major), 9);
  char name[64];
  CU_OK(cuDeviceGetName(name, sizeof name, 0));
  EXPECT_STREQ(name, "Peerlane Simulated GPU");
  int can = 0;
  CU_OK(cuDeviceCanAccessPeer(&can, 0, 1));
  EXPECT_EQ(can, 1);
  const char* text = nullptr;
  CU_OK(cuGetErrorName(error_code::illegal_address, &text));
  EXPECT_STREQ(text, "CUDA_ERROR_ILLEGAL_ADDRESS");
  CU_FAILS(invalid_value, cuGetErrorName(12345, &text));
  int unused = 0;
  CU_FAILS(invalid_device, cuDeviceGetAttribute(&unused, 1, 2));
}

extern "C" {
result_t cuGraphClone();
result_t cuGetProcAddress_v2(const char*, void**, int, std::uint64_t, int*);
}

TEST_F(Process, WhatIsMissingSaysSoOnce) {
  testing::internal::CaptureStderr();
  CU_FAILS(not_supported, cuGraphClone());
  CU_FAILS(not_supported, cuGraphClone());
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("cuGraphClone"), std::string::npos);
  EXPECT_EQ(text.find("cuGraphClone"), text.rfind("cuGraphClone"));
}

TEST_F(Process, BaseNamesResolveToTheVersionMeant) {
  const struct {
    const char* name;
    int version;
    const char* symbol;
  } cases[] = {{"cuMemAlloc", 12000, "cuMemAlloc_v2"},      {"cuInit", 12000, "cuInit"},
               {"cuCtxCreate", 12040, "cuCtxCreate_v3"},    {"cuCtxCreate", 13000, "cuCtxCreate_v4"},
               {"cuMemAdvise", 12010, "cuMemAdvise"},       {"cuMemAdvise", 13000, "cuMemAdvise_v2"},
               {"cuCtxGetDevice", 12090, "cuCtxGetDevice"}, {"cuCtxGetDevice", 13000, "cuCtxGetDevice_v2"}};
  for (const auto& c : cases) {
    void* found = nullptr;
    int status = -1;
    CU_OK(cuGetProcAddress_v2(c.name, &found, c.version, 0, &status));
    EXPECT_EQ(status, 0);
    EXPECT_EQ(found, dlsym(RTLD_DEFAULT, c.symbol)) << c.name;
  }
  void* found = &found;
  int status = -1;
  CU_OK(cuGetProcAddress_v2("cuNoSuchCall", &found, 12000, 0, &status));
  EXPECT_EQ(status, 1);
  EXPECT_EQ(found, nullptr);
}

TEST_F(Process, EverySymbolOfTheToolkitsStubIsExported) {
  const std::string stub = PL_TEST_CUDA_STUB;
  if (stub.empty()) GTEST_SKIP() << "no toolkit: its stub libcuda.so is not installed";
  FILE* const list = popen(("nm -D --defined-only " + stub).c_str(), "r");
  ASSERT_NE(list, nullptr);
  char line[512];
  int seen = 0;
  while (std::fgets(line, sizeof line, list) != nullptr) {
    char name[256] = "";
    if (std::sscanf(line, "%*s %*s %255s", name) != 1 || std::strncmp(name, "cu", 2) != 0) continue;
    ++seen;
    EXPECT_NE(dlsym(RTLD_DEFAULT, name), nullptr) << name;
  }
  pclose(list);
  EXPECT_GT(seen, 500);
}

}  // namespace
}  // namespace pl::cu
