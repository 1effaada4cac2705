// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

#include "cuda/kernel_image.hpp"
#include "test/sim/sim_test.hpp"
#include "test_kernels_image.hpp"

namespace pl::cu {
namespace {

class Kernels : public SimTest {
 protected:
  void SetUp() override {
    SimTest::SetUp();
    const auto table = driver();
    ASSERT_TRUE(table);
    auto loaded = load_kernels(**table, kernels::test_kernels());
    ASSERT_TRUE(loaded);
    module_ = *loaded;
  }

  function_t function(const char* name) {
    function_t found = nullptr;
    EXPECT_EQ(cuModuleGetFunction(&found, module_, name), error_code::success) << name;
    return found;
  }

  template <class... Args>
  result_t launch(const char* name, unsigned blocks, unsigned threads, unsigned shared_bytes, Args... args) {
    void* params[] = {&args..., nullptr};
    return cuLaunchKernel(function(name), blocks, 1, 1, threads, 1, 1, shared_bytes, nullptr, params, nullptr);
  }

  module_t module_ = nullptr;
};

TEST_F(Kernels, TheSimulatorIsRecognisedAndTheMissingFormIsNamed) {
  EXPECT_TRUE((*driver())->is_simulated);
  const auto missing = load_kernels(**driver(), kernel_image{});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ENOTSUP);
}

TEST_F(Kernels, BarriersJoinTheThreadsOfABlock) {
  constexpr unsigned kThreads = 64;
  constexpr unsigned kBlocks = 20;  // more than multiprocessors
  constexpr unsigned n = kThreads * kBlocks;
  std::vector<std::uint32_t> a(n);
  std::vector<std::uint32_t> b(n);
  std::iota(a.begin(), a.end(), 5u);
  std::iota(b.begin(), b.end(), 1000u);
  const device_ptr da = allocate(n * 4);
  const device_ptr db = allocate(n * 4);
  const device_ptr out = allocate(n * 4);
  CU_OK(cuMemcpyHtoD_v2(da, a.data(), n * 4));
  CU_OK(cuMemcpyHtoD_v2(db, b.data(), n * 4));
  CU_OK(launch("add_reversed", kBlocks, kThreads, kThreads * 4, out, da, db, n));
  std::vector<std::uint32_t> got(n);
  CU_OK(cuMemcpyDtoH_v2(got.data(), out, n * 4));
  for (unsigned i = 0; i < n; ++i) ASSERT_EQ(got[i], a[i] + b[i / kThreads * kThreads + (kThreads - 1 - i % kThreads)]) << i;
}

// An idle thread of the executor must not be promised to two launches: here most wait for the last one.
TEST_F(Kernels, LaunchesAtTheSameTimeRunAtTheSameTime) {
  constexpr std::size_t kWaiting = 7;
  constexpr unsigned kIdle = 4;
  void* host = nullptr;
  CU_OK(cuMemHostAlloc(&host, 4096, 0));
  const device_ptr flag = allocate(64);
  stream_t streams[kWaiting + 1] = {};
  for (auto& made : streams) CU_OK(cuStreamCreate(&made, stream_flag::non_blocking));
  const function_t wait = function("spin_for_ever"), store = function("write_word");
  std::uint64_t flag_address = flag, one = 1, unused = flag + 8;
  void* wait_params[] = {&flag_address};
  void* store_params[] = {&flag_address, &one};
  void* warm_params[] = {&unused, &one};
  for (int round = 0; round < 12; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(150));  // idle threads leave
    CU_OK(cuMemsetD8_v2(flag, 0, 64));
    CU_OK(cuLaunchKernel(store, kIdle, 1, 1, 1, 1, 1, 0, nullptr, warm_params, nullptr));  // some are here again
    CU_OK(cuCtxSynchronize());
    for (const stream_t stream_handle : streams) {
      const bool is_last = stream_handle == streams[kWaiting];
      CU_OK(cuLaunchKernel(is_last ? store : wait, 1, 1, 1, 1, 1, 1, 0, stream_handle, is_last ? store_params : wait_params,
                           nullptr));
    }
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    const auto is_busy = [&](stream_t stream_handle) { return cuStreamQuery(stream_handle) == error_code::not_ready; };
    while (std::any_of(streams, streams + kWaiting, is_busy) && std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
    ASSERT_FALSE(std::any_of(streams, streams + kWaiting, is_busy)) << "round " << round;
  }
}

TEST_F(Kernels, APollingKernelIsAnsweredByTheCpu) {
  void* host = nullptr;
  CU_OK(cuMemHostAlloc(&host, 4096, 0));
  auto* const request = static_cast<std::uint32_t*>(host);
  auto* const reply = request + 16;
  constexpr std::uint32_t kLast = 100;
  CU_OK(launch("answer", 1, 1, 0, reinterpret_cast<device_ptr>(request), reinterpret_cast<device_ptr>(reply), kLast));
  for (std::uint32_t i = 1; i <= kLast; ++i) {
    __atomic_store_n(request, i, __ATOMIC_RELEASE);
    while (__atomic_load_n(reply, __ATOMIC_ACQUIRE) != i * 3) std::this_thread::yield();
  }
  CU_OK(cuCtxSynchronize());
}

// On busy CPUs, a block that yielded between its loads would take seconds to read 256 KiB.
TEST_F(Kernels, OnlyPollingBlocksYieldTheirCpu) {
  constexpr std::uint64_t kWords = 20'000;
  for (const unsigned threads : {1u, 16u}) {
    const device_ptr sum = allocate(4), words = allocate(4 * kWords);
    CU_OK(cuMemsetD32_v2(sum, 0, 1));
    CU_OK(cuMemsetD32_v2(words, 3, kWords));
    const auto before = peerlaneSimIdleRounds();
    CU_OK(launch("sum_words", 1, threads, 0, sum, words, kWords));
    std::uint32_t got = 0;
    CU_OK(cuMemcpyDtoH_v2(&got, sum, 4));
    EXPECT_EQ(got, 3 * kWords);
    EXPECT_LT(peerlaneSimIdleRounds() - before, 10u) << threads << " threads";
  }
  void* flag = nullptr;
  CU_OK(cuMemHostAlloc(&flag, 4096, 0));
  const auto before = peerlaneSimIdleRounds();
  CU_OK(launch("spin_for_ever", 1, 2, 0, reinterpret_cast<device_ptr>(flag)));
  while (peerlaneSimIdleRounds() - before < 100) std::this_thread::yield();
  __atomic_store_n(static_cast<std::uint32_t*>(flag), 1u, __ATOMIC_RELEASE);
  CU_OK(cuCtxSynchronize());
}

TEST_F(Kernels, APollingKernelSeesDeviceMemoryWrittenThroughAnExport) {
  const device_ptr flag = allocate(4u << 20);
  exported_range view(flag, 4096, 0);
  ASSERT_NE(view.data, nullptr);
  CU_OK(cuMemsetD8_v2(flag, 0, 4096));
  auto* const request = reinterpret_cast<std::uint32_t*>(view.data);
  CU_OK(launch("answer", 1, 1, 0, flag, flag + 64, std::uint32_t{3}));
  for (std::uint32_t i = 1; i <= 3; ++i) {
    __atomic_store_n(request, i, __ATOMIC_RELEASE);
    while (__atomic_load_n(request + 16, __ATOMIC_ACQUIRE) != i * 3) std::this_thread::yield();
  }
  CU_OK(cuCtxSynchronize());
}

TEST_F(Kernels, EveryThreadOfEveryBlockRunsOnce) {
  const device_ptr counter = allocate(4);
  CU_OK(cuMemsetD32_v2(counter, 0, 1));
  CU_OK(launch("count_threads", 37, 33, 0, counter));
  CU_OK(launch("count_threads", 1, 1, 0, counter));
  std::uint32_t count = 0;
  CU_OK(cuMemcpyDtoH_v2(&count, counter, 4));
  EXPECT_EQ(count, 37u * 33u + 1u);
}

TEST_F(Kernels, VectorsAndWidths) {
  const auto sent = pattern(4096, 9);
  const device_ptr source = allocate(4096);
  const device_ptr destination = allocate(4096);
  CU_OK(cuMemcpyHtoD_v2(source, sent.data(), 4096));
  CU_OK(launch("copy_vectors", 2, 32, 0, destination, source, std::uint64_t{256}));
  std::vector<unsigned char> got(4096);
  CU_OK(cuMemcpyDtoH_v2(got.data(), destination, 4096));
  EXPECT_EQ(got, sent);

  CU_OK(cuMemsetD8_v2(destination, 0, 4096));
  CU_OK(launch("widths", 1, 1, 0, destination, source));
  CU_OK(cuMemcpyDtoH_v2(got.data(), destination, 24));
  EXPECT_EQ(got[0], sent[0]);
  EXPECT_EQ(got[1], 0);
  EXPECT_EQ(std::memcmp(&got[2], &sent[2], 14), 0);
  EXPECT_EQ(got[16], 1) << "both clocks go forward";
}

TEST_F(Kernels, ParametersAreCopiedAtLaunchAndMayBePacked) {
  const device_ptr word = allocate(8);
  struct {
    std::uint64_t address, value;
  } packed{word, 77};
  std::size_t bytes = sizeof packed;
  void* extra[] = {reinterpret_cast<void*>(1), &packed, reinterpret_cast<void*>(2), &bytes, nullptr};
  const function_t write = function("write_word");
  CU_OK(cuLaunchKernel(write, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
  packed.value = 0;
  std::uint64_t got = 0;
  CU_OK(cuMemcpyDtoH_v2(&got, word, 8));
  EXPECT_EQ(got, 77u);
  bytes = 8;
  CU_FAILS(invalid_value, cuLaunchKernel(write, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
  CU_FAILS(invalid_value, cuLaunchKernel(write, 1, 1, 1, 1025, 1, 1, 0, nullptr, nullptr, extra));
  CU_FAILS(invalid_value, cuLaunchKernel(write, 0, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
}

TEST_F(Kernels, AnIllegalAddressBreaksTheContextForGood) {
  const device_ptr good = allocate(8);
  CU_OK(launch("write_word", 4, 4, 0, good + (64u << 20), std::uint64_t{1}));
  CU_FAILS(illegal_address, cuCtxSynchronize());
  device_ptr more = 0;
  CU_FAILS(illegal_address, cuMemAlloc_v2(&more, 8));
  std::uint64_t word = 0;
  CU_FAILS(illegal_address, cuMemcpyDtoH_v2(&word, good, 8));
  CU_FAILS(illegal_address, cuStreamSynchronize(nullptr));
  // other contexts live on
  context_t other = nullptr;
  CU_OK(cuCtxCreate_v2(&other, 0, 0));
  CU_OK(cuMemAlloc_v2(&more, 8));
  CU_OK(cuCtxSynchronize());
  CU_OK(cuCtxDestroy_v2(other));
}

TEST_F(Kernels, PlainHostPointersAndMisalignedAddressesFault) {
  auto on_stack = std::uint64_t{5};
  CU_OK(launch("write_word", 1, 1, 0, reinterpret_cast<device_ptr>(&on_stack), std::uint64_t{1}));
  CU_FAILS(illegal_address, cuCtxSynchronize());
  EXPECT_EQ(on_stack, 5u);
  context_t other = nullptr;
  CU_OK(cuCtxCreate_v2(&other, 0, 0));
  auto loaded = load_kernels(**driver(), kernels::test_kernels());
  ASSERT_TRUE(loaded);
  module_ = *loaded;
  CU_OK(launch("write_word", 1, 1, 0, allocate(64) + 4, std::uint64_t{1}));
  CU_FAILS(misaligned_address, cuCtxSynchronize());
  CU_OK(cuCtxDestroy_v2(other));
}

TEST_F(Kernels, PeerMemoryNeedsPeerAccess) {
  context_t peer = nullptr;
  CU_OK(cuCtxCreate_v2(&peer, 0, 1));
  const device_ptr remote = allocate(8);
  CU_OK(cuCtxSetCurrent(context_));
  CU_OK(cuCtxEnablePeerAccess(peer, 0));
  CU_FAILS(peer_access_already_enabled, cuCtxEnablePeerAccess(peer, 0));
  CU_OK(launch("write_word", 1, 1, 0, remote, std::uint64_t{42}));
  std::uint64_t word = 0;
  CU_OK(cuMemcpyDtoH_v2(&word, remote, 8));
  EXPECT_EQ(word, 42u);

  context_t stranger = nullptr;
  CU_OK(cuCtxCreate_v2(&stranger, 0, 0));
  auto loaded = load_kernels(**driver(), kernels::test_kernels());
  ASSERT_TRUE(loaded);
  module_ = *loaded;
  CU_OK(launch("write_word", 1, 1, 0, remote, std::uint64_t{43}));
  CU_FAILS(illegal_address, cuCtxSynchronize());
  CU_OK(cuCtxDestroy_v2(stranger));
  CU_OK(cuCtxDestroy_v2(peer));
}

TEST_F(Kernels, DestroyingTheContextEndsASpinningKernel) {
  const device_ptr flag = allocate(4);
  CU_OK(cuMemsetD32_v2(flag, 0, 1));
  CU_OK(launch("spin_for_ever", 3, 2, 0, flag));
  CU_OK(cuCtxDestroy_v2(context_));  // would hang otherwise
  context_ = nullptr;
}

TEST_F(Kernels, ModulesRefuseWhatIsNotForThisCpu) {
  module_t module = nullptr;
  const char ptx[128] = ".version 8.0\n.target sm_90\n";
  testing::internal::CaptureStderr();
  CU_FAILS(no_binary_for_gpu, cuModuleLoadData(&module, ptx));
  EXPECT_NE(testing::internal::GetCapturedStderr().find("cuModuleLoadData"), std::string::npos);
  function_t none = nullptr;
  CU_FAILS(not_found, cuModuleGetFunction(&none, module_, "no_such_kernel"));
  CU_OK(cuModuleUnload(module_));
  CU_FAILS(invalid_handle, cuModuleGetFunction(&none, module_, "write_word"));
  CU_FAILS(invalid_handle, cuModuleUnload(module_));
}

TEST_F(Kernels, UnloadingDoesNotWaitOrBreakRunningKernels) {
  const device_ptr counter = allocate(4);
  CU_OK(cuMemsetD32_v2(counter, 0, 1));
  for (int i = 0; i < 10; ++i) {
    CU_OK(launch("count_threads", 4, 8, 0, counter));
    CU_OK(cuModuleUnload(module_));
    auto loaded = load_kernels(**driver(), kernels::test_kernels());
    ASSERT_TRUE(loaded);
    module_ = *loaded;
  }
  std::uint32_t count = 0;
  CU_OK(cuMemcpyDtoH_v2(&count, counter, 4));
  EXPECT_EQ(count, 320u);
}

}  // namespace
}  // namespace pl::cu
