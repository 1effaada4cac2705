// SPDX-License-Identifier: Apache-2.0
// The ordering rules that stream-triggered communication lives by (docs/simulated-gpu.md), each as a litmus test: written
// as the rule says it holds under every seed; with one fence, flag or wait left out, some seed shows stale data.
#include <sched.h>

#include <atomic>
#include <functional>
#include <thread>

#include "cuda/kernel_image.hpp"
#include "test/sim/sim_test.hpp"
#include "test_kernels_image.hpp"

namespace pl::cu {
extern "C" {
result_t cuStreamWriteValue64(stream_t, device_ptr, std::uint64_t, unsigned);
void peerlaneSimSetDisorder(unsigned long long seed, unsigned delay_us);
int peerlaneSimNetworkWrite(device_ptr destination, const void* source, std::size_t bytes);
}

namespace {

constexpr unsigned kRightSeeds = 30;  // for programs that must hold
constexpr unsigned kSeeds = 60;       // for broken ones; most show it within ten
constexpr unsigned kDelayUs = 200;
constexpr std::size_t kWords = 8;  // of data
constexpr std::size_t kDataBytes = kWords * 8;
constexpr unsigned kNoBarrier = write_value::no_memory_barrier;

#if defined(__SANITIZE_THREAD__)
constexpr bool kBrokenProgramsMayRun = false;  // they race, as they should
#else
constexpr bool kBrokenProgramsMayRun = true;
#endif

// One GPU that sends (current on the test's thread) and one that receives, and pinned memory between them and the CPU.
class Litmus : public SimTest {
 protected:
  void SetUp() override {
    SimTest::SetUp();
    near_ = make_side();
    CU_OK(cuCtxCreate_v2(&other_context_, 0, 1));
    far_ = make_side();
    CU_OK(cuCtxSetCurrent(context_));
    CU_OK(cuCtxEnablePeerAccess(other_context_, 0));
    void* host = nullptr;
    CU_OK(cuMemHostAlloc(&host, 4096, host_alloc_flag::portable));
    host_ = static_cast<std::uint64_t*>(host);
  }
  void TearDown() override {
    peerlaneSimSetDisorder(0, 0);
    EXPECT_EQ(cuCtxDestroy_v2(other_context_), error_code::success);
    EXPECT_EQ(cuCtxSetCurrent(context_), error_code::success);
    SimTest::TearDown();
  }

  struct side {
    stream_t stream, second;
    module_t module;
    device_ptr data;     // kWords
    device_ptr flag;     // one word, in another line
    device_ptr sources;  // kWords copies of the round's number
  };
  side make_side() {
    side made{};
    EXPECT_EQ(cuStreamCreate(&made.stream, stream_flag::non_blocking), 0);
    EXPECT_EQ(cuStreamCreate(&made.second, stream_flag::non_blocking), 0);
    const auto loaded = load_kernels(**driver(), kernels::test_kernels());
    EXPECT_TRUE(loaded);
    made.module = *loaded;
    made.data = allocate(4096);
    made.flag = made.data + 1024;
    made.sources = made.data + 2048;
    EXPECT_EQ(cuMemsetD8_v2(made.data, 0, 4096), 0);
    return made;
  }

  template <class... Args>
  void launch(const side& gpu, const char* name, unsigned threads, Args... args) {
    function_t found = nullptr;
    EXPECT_EQ(cuModuleGetFunction(&found, gpu.module, name), 0);
    void* params[] = {&args..., nullptr};
    EXPECT_EQ(cuLaunchKernel(found, 1, 1, 1, threads, 1, 1, 0, gpu.stream, params, nullptr), 0);
  }

  // Words of host_: data, the flag, what the receiver found, a word for the network's completions.
  std::uint64_t* flag_word() { return host_ + 16; }
  std::uint64_t* found() { return host_ + 32; }
  std::uint64_t* completion_word() { return host_ + 48; }
  static device_ptr device_address(const std::uint64_t* word) { return reinterpret_cast<device_ptr>(word); }
  static std::uint64_t load(const std::uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
  static void store(std::uint64_t* word, std::uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
  static void await(const std::uint64_t* word, std::uint64_t value) {
    while (load(word) < value) sched_yield();
  }
  bool all_are(const std::uint64_t* words, std::uint64_t value) {
    for (std::size_t i = 0; i < kWords; ++i)
      if (load(words + i) != value) return false;
    return true;
  }

  // The receiver: waits for its flag, then copies its data to where the CPU looks.
  void queue_receiver(device_ptr flag, unsigned flush = 0) {
    EXPECT_EQ(cuStreamWaitValue64_v2(far_.stream, flag, round_, wait_value::geq | flush), 0);
    EXPECT_EQ(cuMemcpyDtoHAsync_v2(found(), far_.data, kDataBytes, far_.stream), 0);
  }
  bool receiver_found_the_data() {
    EXPECT_EQ(cuStreamSynchronize(far_.stream), 0);  // first: to synchronise with the sender would help it
    EXPECT_EQ(cuStreamSynchronize(near_.stream), 0);
    EXPECT_EQ(cuStreamSynchronize(near_.second), 0);
    return all_are(found(), round_);
  }

  // One round a seed; `round` says whether the order held. A mutation that nobody notices gets longer and longer delays: on
  // a busy machine the receiver may look too late to see anything else.
  void holds(const std::function<bool()>& round) {
    for (unsigned seed = 1; seed <= kRightSeeds; ++seed) ASSERT_TRUE(run(seed, round)) << "seed " << seed;
  }
  void breaks(const char* missing, const std::function<bool()>& round) {
    if (!kBrokenProgramsMayRun) return;
    for (unsigned seed = 1; seed <= kSeeds; ++seed)
      if (!run(seed, round, kDelayUs << seed / 8)) return;
    ADD_FAILURE() << "no seed of " << kSeeds << " shows that the order is lost without " << missing;
  }
  bool run(unsigned seed, const std::function<bool()>& round, unsigned delay_us = kDelayUs) {
    peerlaneSimSetDisorder(0, 0);
    ++round_;
    const std::vector<std::uint64_t> numbers(kWords, round_);
    EXPECT_EQ(cuMemcpyHtoD_v2(near_.sources, numbers.data(), kDataBytes), 0);
    peerlaneSimSetDisorder(seed, delay_us);
    return round();
  }

  context_t other_context_ = nullptr;
  side near_{}, far_{};
  std::uint64_t* host_ = nullptr;
  std::uint64_t round_ = 0;  // its number is the data and the flag's value
};

TEST_F(Litmus, Rule1AWrittenValueComesAfterTheStreamsEarlierWrites) {
  const auto copied = [&](unsigned flags) {
    queue_receiver(far_.flag);
    EXPECT_EQ(cuMemcpyDtoDAsync_v2(far_.data, near_.sources, kDataBytes, near_.stream), 0);
    EXPECT_EQ(cuStreamWriteValue64(near_.stream, far_.flag, round_, flags), 0);
    return receiver_found_the_data();
  };
  holds([&] { return copied(0); });
  breaks("the barrier, behind a copy", [&] { return copied(kNoBarrier); });
  const auto stored = [&](unsigned flags) {
    queue_receiver(far_.flag);
    launch(near_, "publish", kWords, far_.data, device_address(completion_word()), round_, 2u);
    EXPECT_EQ(cuStreamWriteValue64(near_.stream, far_.flag, round_, flags), 0);
    return receiver_found_the_data();
  };
  holds([&] { return stored(0); });
  breaks("the barrier, behind a kernel", [&] { return stored(kNoBarrier); });
  CU_FAILS(invalid_value, cuStreamWriteValue64_v2(near_.stream, far_.flag, round_, kNoBarrier));
}

TEST_F(Litmus, Rule1BetweenStreamsAnEventIsNeeded) {
  event_t copied = nullptr;
  CU_OK(cuEventCreate(&copied, event_flag::disable_timing));
  const auto round = [&](bool has_event) {
    queue_receiver(far_.flag);
    EXPECT_EQ(cuMemcpyDtoDAsync_v2(far_.data, near_.sources, kDataBytes, near_.stream), 0);
    if (has_event) {
      EXPECT_EQ(cuEventRecord(copied, near_.stream), 0);
      EXPECT_EQ(cuStreamWaitEvent(near_.second, copied, 0), 0);
    }
    EXPECT_EQ(cuStreamWriteValue64_v2(near_.second, far_.flag, round_, 0), 0);
    return receiver_found_the_data();
  };
  holds([&] { return round(true); });
  breaks("the event", [&] { return round(false); });
}

TEST_F(Litmus, Rule1AlsoHoldsInsideGraphs) {
  const auto round = [&](unsigned flags) {
    graph_t made = nullptr;
    graph_exec_t exec = nullptr;
    EXPECT_EQ(cuStreamBeginCapture_v2(near_.stream, capture_mode::relaxed), 0);
    EXPECT_EQ(cuMemcpyDtoDAsync_v2(far_.data, near_.sources, kDataBytes, near_.stream), 0);
    EXPECT_EQ(cuStreamWriteValue64(near_.stream, far_.flag, round_, flags), 0);
    EXPECT_EQ(cuStreamEndCapture(near_.stream, &made), 0);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, made, 0), 0);
    queue_receiver(far_.flag);
    EXPECT_EQ(cuGraphLaunch(exec, near_.stream), 0);
    const bool is_right = receiver_found_the_data();
    EXPECT_EQ(cuGraphExecDestroy(exec), 0);
    EXPECT_EQ(cuGraphDestroy(made), 0);
    return is_right;
  };
  holds([&] { return round(0); });
  breaks("the barrier", [&] { return round(kNoBarrier); });
}

TEST_F(Litmus, Rule2ACopiedFlagNeedsACopyOfItsOwnLaterInTheStream) {
  const auto round = [&](bool is_one_batch) {
    queue_receiver(far_.flag);
    device_ptr destination[] = {far_.data, far_.flag};
    device_ptr source[] = {near_.sources, near_.sources};
    std::size_t bytes[] = {kDataBytes, 8};
    memcpy_attributes attributes{memcpy_source_order::stream, {}, {}, 0};
    std::size_t first = 0;
    if (is_one_batch) {
      EXPECT_EQ(cuMemcpyBatchAsync_v2(destination, source, bytes, 2, &attributes, &first, 1, near_.stream), 0);
    }
    for (int i = 0; i < 2 && !is_one_batch; ++i)
      EXPECT_EQ(cuMemcpyDtoDAsync_v2(destination[i], source[i], bytes[i], near_.stream), 0);
    return receiver_found_the_data();
  };
  holds([&] { return round(false); });
  breaks("an operation of its own for the flag", [&] { return round(true); });
}

TEST_F(Litmus, Rule3AKernelsFlagNeedsBarrierFenceAndRelease) {
  const auto round = [&](unsigned mode) {
    queue_receiver(far_.flag);
    launch(near_, "publish", kWords, far_.data, far_.flag, round_, mode);
    return receiver_found_the_data();
  };
  holds([&] { return round(0); });
  holds([&] { return round(3); });
  breaks("the block's barrier", [&] { return round(1); });
  breaks("fence and release", [&] { return round(2); });
  breaks("the fence's system scope", [&] { return round(4); });
}

TEST_F(Litmus, Rule4TheCpuSeesPinnedDataBehindADoorbell) {
  const auto round = [&](unsigned flags) {
    EXPECT_EQ(cuMemcpyDtoHAsync_v2(host_, near_.sources, kDataBytes, near_.stream), 0);
    EXPECT_EQ(cuStreamWriteValue64(near_.stream, device_address(flag_word()), round_, flags), 0);
    await(flag_word(), round_);
    const bool is_right = all_are(host_, round_);
    EXPECT_EQ(cuStreamSynchronize(near_.stream), 0);
    return is_right;
  };
  holds([&] { return round(0); });
  breaks("the barrier", [&] { return round(kNoBarrier); });
}

// The CPU's own stores are the machine's: what can be left out here is only the order in which they are made.
TEST_F(Litmus, Rule5TheCpuStoresDataBeforeTheDoneWord) {
  const auto round = [&](bool is_data_first) {
    EXPECT_EQ(cuStreamWaitValue64_v2(far_.stream, device_address(flag_word()), round_, wait_value::geq), 0);
    EXPECT_EQ(cuMemcpyHtoDAsync_v2(far_.data, host_, kDataBytes, far_.stream), 0);
    EXPECT_EQ(cuMemcpyDtoHAsync_v2(found(), far_.data, kDataBytes, far_.stream), 0);
    const auto store_data = [&] {
      for (std::size_t i = 0; i < kWords; ++i) store(host_ + i, round_);
    };
    if (is_data_first) store_data();
    store(flag_word(), round_);
    const bool is_right = receiver_found_the_data();
    if (!is_data_first) store_data();
    return is_right;
  };
  holds([&] { return round(true); });
  breaks("the order", [&] { return round(false); });
}

TEST_F(Litmus, Rule6AFlagOnAnotherPathThanTheDataNeedsAFlush) {
  const std::uint64_t* const flag_in_host_memory = flag_word();
  const auto round = [&](device_ptr flag, unsigned flush) {
    queue_receiver(flag, flush);
    const std::vector<std::uint64_t> data(kWords, round_);
    EXPECT_EQ(peerlaneSimNetworkWrite(far_.data, data.data(), kDataBytes), 0);
    EXPECT_EQ(peerlaneSimNetworkWrite(flag, &round_, 8), 0);
    return receiver_found_the_data();
  };
  holds([&] { return round(far_.flag, 0); });
  holds([&] { return round(device_address(flag_in_host_memory), wait_value::flush); });
  breaks("the flush", [&] { return round(device_address(flag_in_host_memory), 0); });
}

TEST_F(Litmus, Rule7AProxyFlushesWhatTheNetworkWroteBeforeItSaysDone) {
  enum class flush { by_cpu, by_stream, none };
  const auto round = [&](flush mode) {
    mem_op_params ops[2] = {};
    ops[0].value = {mem_op::wait64, device_address(flag_word()), {.value64 = round_}, wait_value::geq, 0};
    ops[1].simple = {mem_op::flush_remote_writes, 0};
    EXPECT_EQ(cuStreamBatchMemOp_v2(far_.stream, mode == flush::by_stream ? 2 : 1, ops, 0), 0);
    EXPECT_EQ(cuMemcpyDtoHAsync_v2(found(), far_.data, kDataBytes, far_.stream), 0);
    const std::vector<std::uint64_t> data(kWords, round_);
    EXPECT_EQ(peerlaneSimNetworkWrite(far_.data, data.data(), kDataBytes), 0);
    EXPECT_EQ(peerlaneSimNetworkWrite(device_address(completion_word()), &round_, 8), 0);
    await(completion_word(), round_);
    if (mode == flush::by_cpu) {
      EXPECT_EQ(cuFlushGPUDirectRDMAWrites(flush_target::current_context, flush_scope::all_devices), 0);
    }
    store(flag_word(), round_);
    return receiver_found_the_data();
  };
  holds([&] { return round(flush::by_cpu); });
  holds([&] { return round(flush::by_stream); });
  breaks("the flush", [&] { return round(flush::none); });
}

TEST_F(Litmus, Rule8TwoWritersOfAWordNeedAtomics) {
  constexpr unsigned kTimes = 20;
  const auto round = [&](unsigned is_atomic) {
    store(host_, 0);
    launch(near_, "add_ones", 1, device_address(host_), kTimes, is_atomic);
    launch(far_, "add_ones", 1, device_address(host_), kTimes, is_atomic);
    EXPECT_EQ(cuStreamSynchronize(near_.stream), 0);
    EXPECT_EQ(cuStreamSynchronize(far_.stream), 0);
    return load(host_) == 2 * kTimes;
  };
  holds([&] { return round(1); });
  breaks("atomics", [&] { return round(0); });
}

TEST_F(Litmus, Rule9AWordThatIsResetCanBeMissed) {
  constexpr std::uint64_t kRelease = 1ull << 40;
  const auto round = [&](bool is_monotonic) {
    EXPECT_EQ(cuStreamWriteValue64_v2(far_.second, far_.flag, 0, 0), 0);
    EXPECT_EQ(cuStreamSynchronize(far_.second), 0);
    EXPECT_EQ(cuStreamWaitValue64_v2(far_.stream, far_.flag, 1, wait_value::geq), 0);
    EXPECT_EQ(cuMemcpyDtoHAsync_v2(found(), far_.flag, 8, far_.stream), 0);
    EXPECT_EQ(cuStreamWriteValue64_v2(near_.stream, far_.flag, 1, 0), 0);
    EXPECT_EQ(cuStreamWriteValue64_v2(near_.stream, far_.flag, is_monotonic ? 2 : 0, 0), 0);
    EXPECT_EQ(cuStreamSynchronize(near_.stream), 0);
    if (is_monotonic) {
      EXPECT_EQ(cuStreamSynchronize(far_.stream), 0);
      return load(found()) != 0;
    }
    // Both values have been there. A wait that saw neither never ends by itself.
    for (int i = 0; i < 1000 && cuStreamQuery(far_.stream) != 0; ++i) sched_yield();
    EXPECT_EQ(cuStreamWriteValue64_v2(far_.second, far_.flag, kRelease, 0), 0);
    EXPECT_EQ(cuStreamSynchronize(far_.stream), 0);
    return load(found()) != kRelease;
  };
  holds([&] { return round(true); });
  breaks("monotonic values", [&] { return round(false); });
}

TEST_F(Litmus, Rule10WordsAreAlignedAndNeitherManagedNorPageable) {
  device_ptr managed = 0;
  CU_OK(cuMemAllocManaged(&managed, 64, 1));
  alignas(8) static std::uint64_t plain[8];
  const auto both = [&](device_ptr word) {
    const result_t waited = cuStreamWaitValue64_v2(near_.stream, word, 0, wait_value::geq);
    EXPECT_EQ(cuStreamWriteValue64_v2(near_.stream, word, 0, 0), waited);
    return waited;
  };
  CU_FAILS(invalid_value, both(far_.flag + 4));
  CU_FAILS(invalid_value, both(managed));
  CU_FAILS(invalid_value, both(device_address(plain)));
  CU_OK(cuMemHostRegister_v2(plain, sizeof plain, host_register_flag::device_map));
  device_ptr mapped = 0;
  CU_OK(cuMemHostGetDevicePointer_v2(&mapped, plain, 0));
  CU_OK(both(mapped));
  CU_OK(cuStreamSynchronize(near_.stream));
  CU_OK(cuMemHostUnregister(plain));
}

// What must stay true whatever is held back.
TEST_F(Litmus, ADeviceReadsWhatItWroteAndWhoeverSynchronisesSeesEverything) {
  const auto round = [&] {
    launch(near_, "publish", kWords, far_.data, device_address(flag_word()), round_, 2u);
    EXPECT_EQ(cuMemcpyDtoDAsync_v2(near_.data, far_.data, kDataBytes, near_.stream), 0);
    EXPECT_EQ(cuMemcpyDtoHAsync_v2(host_, near_.data, kDataBytes, near_.stream), 0);
    EXPECT_EQ(cuStreamSynchronize(near_.stream), 0);
    return all_are(host_, round_) && load(flag_word()) == round_;
  };
  holds(round);
  struct seen {
    const std::uint64_t* word;
    std::uint64_t value;
  } by_host_function{host_, 0};
  const auto count = [&] {
    store(host_, 0);
    launch(near_, "add_ones", 1, device_address(host_), 5u, 0u);
    const auto read_word = [](void* data) { static_cast<seen*>(data)->value = *static_cast<seen*>(data)->word; };
    EXPECT_EQ(cuLaunchHostFunc(near_.stream, read_word, &by_host_function), 0);
    EXPECT_EQ(cuStreamSynchronize(near_.stream), 0);
    return by_host_function.value == 5;
  };
  holds(count);
}

}  // namespace
}  // namespace pl::cu
