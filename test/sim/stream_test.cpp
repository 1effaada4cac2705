// SPDX-License-Identifier: Apache-2.0
// Order and asynchrony. A gate (a stream waiting for a word in pinned memory) makes "not yet" certain, so nothing here
// depends on how long something takes.
#include <atomic>
#include <thread>

#include "test/sim/sim_test.hpp"

namespace pl::cu {
namespace {

class Streams : public SimTest {
 protected:
  void SetUp() override {
    SimTest::SetUp();
    void* host = nullptr;
    CU_OK(cuMemHostAlloc(&host, 4096, 0));
    words_ = static_cast<std::uint32_t*>(host);
    CU_OK(cuStreamCreate(&stream_, stream_flag::standard));
    CU_OK(cuStreamCreate(&free_, stream_flag::non_blocking));
  }
  device_ptr word(unsigned i) { return reinterpret_cast<device_ptr>(words_ + i); }
  void close_gate(stream_t stream_handle) { CU_OK(cuStreamWaitValue32_v2(stream_handle, word(0), 1, wait_value::eq)); }
  void open_gate() { __atomic_store_n(words_, 1u, __ATOMIC_RELEASE); }

  std::uint32_t* words_ = nullptr;  // word 0 is the gate
  stream_t stream_ = nullptr;
  stream_t free_ = nullptr;
};

TEST_F(Streams, WorkIsQueuedAndRunsInOrder) {
  const device_ptr a = allocate(8);
  const device_ptr b = allocate(8);
  CU_OK(cuMemsetD32_v2(a, 1, 2));
  close_gate(free_);
  CU_OK(cuMemsetD8Async(a, 0x77, 8, free_));
  CU_OK(cuMemcpyDtoDAsync_v2(b, a, 8, free_));
  CU_OK(cuMemcpyDtoHAsync_v2(words_ + 2, b, 4, free_));
  CU_OK(cuMemsetD8Async(a, 0x55, 8, free_));
  CU_FAILS(not_ready, cuStreamQuery(free_));
  std::uint32_t now = 0;
  CU_OK(cuMemcpyDtoH_v2(&now, a, 4));
  EXPECT_EQ(now, 1u) << "nothing behind the gate has run; the legacy stream does not wait for a non-blocking one";
  open_gate();
  CU_OK(cuStreamSynchronize(free_));
  CU_OK(cuStreamQuery(free_));
  EXPECT_EQ(words_[2], 0x77777777u);
  CU_OK(cuMemcpyDtoH_v2(&now, a, 4));
  EXPECT_EQ(now, 0x55555555u);
}

TEST_F(Streams, TheLegacyStreamBlocksOnlyBlockingStreams) {
  const device_ptr a = allocate(8);
  CU_OK(cuMemsetD32_v2(a, 5, 2));
  stream_t other = nullptr;
  CU_OK(cuStreamCreate(&other, stream_flag::standard));
  close_gate(stream_);
  CU_OK(cuMemsetD8Async(a, 1, 4, nullptr));    // behind the gate: legacy waits for stream_
  CU_OK(cuMemsetD8Async(a + 4, 2, 4, other));  // behind legacy
  CU_OK(cuMemcpyDtoHAsync_v2(words_ + 2, a, 8, free_));
  CU_OK(cuStreamSynchronize(free_));
  EXPECT_EQ(words_[2], 5u);
  EXPECT_EQ(words_[3], 5u);
  CU_FAILS(not_ready, cuStreamQuery(nullptr));
  CU_FAILS(not_ready, cuStreamQuery(other));
  open_gate();
  CU_OK(cuStreamSynchronize(other));
  std::uint32_t now[2];
  CU_OK(cuMemcpyDtoH_v2(now, a, 8));
  EXPECT_EQ(now[0], 0x01010101u);
  EXPECT_EQ(now[1], 0x02020202u);
  CU_OK(cuStreamDestroy_v2(other));
}

TEST_F(Streams, EventsOrderStreamsAndMeasure) {
  const device_ptr a = allocate(4);
  event_t before = nullptr;
  event_t after = nullptr;
  CU_OK(cuEventCreate(&before, 0));
  CU_OK(cuEventCreate(&after, 0));
  CU_OK(cuEventQuery(after)) << "never recorded counts as done";
  CU_OK(cuMemsetD32_v2(a, 0, 1));
  stream_t second = nullptr;
  CU_OK(cuStreamCreate(&second, stream_flag::non_blocking));
  CU_OK(cuEventRecord(before, free_));
  close_gate(free_);
  CU_OK(cuMemsetD8Async(a, 9, 4, free_));
  CU_OK(cuEventRecord(after, free_));
  CU_OK(cuStreamWaitEvent(second, after, 0));
  CU_OK(cuMemcpyDtoHAsync_v2(words_ + 2, a, 4, second));
  CU_OK(cuEventSynchronize(before));
  CU_FAILS(not_ready, cuEventQuery(after));
  CU_FAILS(not_ready, cuStreamQuery(second));
  float ms = -1;
  CU_FAILS(not_ready, cuEventElapsedTime(&ms, before, after));
  open_gate();
  CU_OK(cuStreamSynchronize(second));
  EXPECT_EQ(words_[2], 0x09090909u);
  CU_OK(cuEventElapsedTime(&ms, before, after));
  EXPECT_GT(ms, 0.0f);
  CU_OK(cuEventElapsedTime(&ms, after, before));
  EXPECT_LT(ms, 0.0f);
  CU_OK(cuEventDestroy_v2(before));
  CU_FAILS(invalid_handle, cuEventDestroy_v2(before));
  CU_OK(cuEventDestroy_v2(after));
  CU_OK(cuStreamDestroy_v2(second));
}

TEST_F(Streams, PageableSourcesAreReadBeforeTheCallReturns) {
  const device_ptr a = allocate(1024);
  auto source = pattern(1024, 1);
  const auto kept = source;
  close_gate(free_);
  CU_OK(cuMemcpyHtoDAsync_v2(a, source.data(), source.size(), free_));
  std::fill(source.begin(), source.end(), 0);
  open_gate();
  std::vector<unsigned char> got(1024);
  CU_OK(cuMemcpyDtoHAsync_v2(got.data(), a, got.size(), free_));
  EXPECT_EQ(got, kept) << "a copy to pageable memory has finished when the call returns";
}

TEST_F(Streams, DestroyedStreamsFinishTheirWork) {
  const device_ptr a = allocate(4);
  CU_OK(cuMemsetD32_v2(a, 0, 1));
  event_t done = nullptr;
  CU_OK(cuEventCreate(&done, event_flag::disable_timing));
  close_gate(free_);
  CU_OK(cuMemsetD8Async(a, 3, 4, free_));
  CU_OK(cuEventRecord(done, free_));
  CU_OK(cuStreamDestroy_v2(free_));
  CU_FAILS(invalid_handle, cuStreamQuery(free_));
  CU_FAILS(not_ready, cuEventQuery(done));
  open_gate();
  CU_OK(cuEventSynchronize(done));
  std::uint32_t now = 0;
  CU_OK(cuMemcpyDtoH_v2(&now, a, 4));
  EXPECT_EQ(now, 0x03030303u);
  CU_OK(cuEventDestroy_v2(done));
}

TEST_F(Streams, WaitConditions) {
  const struct {
    unsigned condition;
    std::uint32_t value, blocked, passing;
  } cases[] = {
      {wait_value::geq, 10, 9, 10},
      {wait_value::geq, 0x10, 0xfffffff0u, 0x11},  // cyclic: -16 is before 16
      {wait_value::eq, 7, 8, 7},
      {wait_value::bit_and, 0x6, 0x9, 0x2},
      {wait_value::nor, 0xffff0000u, 0xffffu, 0xfffeu},
  };
  for (const auto& c : cases) {
    __atomic_store_n(words_ + 4, c.blocked, __ATOMIC_RELEASE);
    CU_OK(cuStreamWaitValue32_v2(free_, word(4), c.value, c.condition));
    // a second stream passes by: the first one had every opportunity to go on wrongly
    CU_OK(cuStreamWriteValue32_v2(stream_, word(5), c.value, 0));
    CU_OK(cuStreamSynchronize(stream_));
    CU_FAILS(not_ready, cuStreamQuery(free_)) << c.condition;
    __atomic_store_n(words_ + 4, c.passing, __ATOMIC_RELEASE);
    CU_OK(cuStreamSynchronize(free_));
  }
  CU_FAILS(invalid_value, cuStreamWaitValue32_v2(free_, word(4) + 2, 0, 0));
  std::uint32_t plain = 0;
  CU_FAILS(invalid_value, cuStreamWaitValue32_v2(free_, reinterpret_cast<device_ptr>(&plain), 0, 0));
}

TEST_F(Streams, TwoStreamsPlayPingPongThroughDeviceMemory) {
  const device_ptr ball = allocate(16);
  CU_OK(cuMemsetD32_v2(ball, 0, 4));
  constexpr std::uint64_t kRounds = 100;
  for (std::uint64_t i = 0; i < kRounds; ++i) {
    CU_OK(cuStreamWaitValue64_v2(free_, ball, i, wait_value::eq));
    CU_OK(cuStreamWriteValue64_v2(free_, ball + 8, i + 1, 0));
    mem_op_params ops[2] = {};
    ops[0].value = {mem_op::wait64, ball + 8, {.value64 = i + 1}, wait_value::eq, 0};
    ops[1].value = {mem_op::write64, ball, {.value64 = i + 1}, 0, 0};
    CU_OK(cuStreamBatchMemOp_v2(stream_, 2, ops, 0));
  }
  CU_OK(cuStreamSynchronize(stream_));
  CU_OK(cuStreamSynchronize(free_));
  std::uint64_t got[2];
  CU_OK(cuMemcpyDtoH_v2(got, ball, 16));
  EXPECT_EQ(got[0], kRounds);
  EXPECT_EQ(got[1], kRounds);
}

extern "C" {
result_t cuStreamAddCallback(stream_t, void (*)(stream_t, result_t, void*), void*, unsigned);
}

TEST_F(Streams, HostFunctionsRunInOrderAndMayNotCallTheDriver) {
  struct seen {
    std::uint32_t* words;
    std::uint32_t value = 0;
    result_t driver = -1;
    result_t status = -1;
  } got{words_};
  const device_ptr a = allocate(4);
  close_gate(free_);
  CU_OK(cuMemsetD8Async(a, 4, 4, free_));
  CU_OK(cuMemcpyDtoHAsync_v2(words_ + 2, a, 4, free_));
  CU_OK(cuLaunchHostFunc(
      free_,
      [](void* data) {
        auto& s = *static_cast<seen*>(data);
        s.value = s.words[2];
        int count = 0;
        s.driver = cuDeviceGetCount(&count);
      },
      &got));
  CU_OK(cuStreamAddCallback(
      free_, [](stream_t, result_t status, void* data) { static_cast<seen*>(data)->status = status; }, &got, 0));
  open_gate();
  CU_OK(cuStreamSynchronize(free_));
  EXPECT_EQ(got.value, 0x04040404u);
  EXPECT_EQ(got.driver, static_cast<result_t>(error_code::not_permitted));
  EXPECT_EQ(got.status, static_cast<result_t>(error_code::success));
}

TEST_F(Streams, FreeingMemoryWaitsForTheWorkThatUsesIt) {
  const device_ptr a = allocate(4u << 20);
  std::atomic<bool> is_open{false};
  close_gate(free_);
  CU_OK(cuMemsetD8Async(a, 1, 4u << 20, free_));
  std::thread opener([&] {
    is_open = true;
    open_gate();
  });
  CU_OK(cuMemFree_v2(a));
  EXPECT_TRUE(is_open) << "the free came back while work was outstanding";
  opener.join();
}

TEST_F(Streams, DestroyingTheContextEndsWaits) {
  close_gate(free_);
  close_gate(stream_);
  CU_OK(cuMemsetD8Async(allocate(64), 1, 64, stream_));
  words_ = nullptr;  // freed with the context
  CU_OK(cuCtxDestroy_v2(context_));
  CU_FAILS(invalid_handle, cuStreamQuery(free_));
  context_ = nullptr;
}

TEST_F(Streams, DestroyingTheContextEndsAWaitForAnotherContextsEvent) {
  event_t never = nullptr;
  CU_OK(cuEventCreate(&never, 0));
  close_gate(free_);
  CU_OK(cuEventRecord(never, free_));
  context_t other = nullptr;
  stream_t waiting = nullptr;
  CU_OK(cuCtxCreate_v2(&other, 0, 0));
  CU_OK(cuStreamCreate(&waiting, stream_flag::non_blocking));
  CU_OK(cuStreamWaitEvent(waiting, never, 0));
  CU_OK(cuCtxDestroy_v2(other));  // would hang otherwise
  CU_FAILS(not_ready, cuEventQuery(never));
  open_gate();
  CU_OK(cuEventSynchronize(never));
}

TEST_F(Streams, ManyThreadsSubmitToOneStream) {
  const device_ptr counters = allocate(4 * 8);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 1; i <= 50; ++i)
        ASSERT_EQ(cuStreamWriteValue64_v2(stream_, counters + 8 * t, i, 0), error_code::success);
    });
  for (auto& thread : threads) thread.join();
  CU_OK(cuStreamSynchronize(stream_));
  std::uint64_t got[4];
  CU_OK(cuMemcpyDtoH_v2(got, counters, sizeof got));
  for (const auto value : got) EXPECT_EQ(value, 50u) << "each thread's own order holds";
}

}  // namespace
}  // namespace pl::cu
