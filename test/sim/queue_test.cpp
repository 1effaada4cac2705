// SPDX-License-Identifier: Apache-2.0
// Queues as short and as few as hardware's: eight operations to a stream, two queues to a context (see CMakeLists.txt).
#include <atomic>
#include <thread>

#include "test/sim/sim_test.hpp"

namespace pl::cu {
namespace {

constexpr unsigned kDepth = 8;

class Queues : public SimTest {
 protected:
  void SetUp() override {
    SimTest::SetUp();
    void* host = nullptr;
    CU_OK(cuMemHostAlloc(&host, 4096, 0));
    words_ = static_cast<std::uint64_t*>(host);
    // The legacy stream has queue 0; first_ and third_ share queue 1.
    for (stream_t* made : {&first_, &second_, &third_}) CU_OK(cuStreamCreate(made, stream_flag::non_blocking));
  }
  device_ptr word(unsigned i) { return reinterpret_cast<device_ptr>(words_ + i); }
  std::uint64_t seen(unsigned i) { return __atomic_load_n(words_ + i, __ATOMIC_ACQUIRE); }
  void store(unsigned i, std::uint64_t value) { __atomic_store_n(words_ + i, value, __ATOMIC_RELEASE); }
  // A stream that is stuck at word 0 with its queue full.
  void fill(stream_t stream_handle) {
    CU_OK(cuStreamWaitValue64_v2(stream_handle, word(0), 1, wait_value::geq));
    for (unsigned i = 1; i < kDepth; ++i) CU_OK(cuStreamWriteValue64_v2(stream_handle, word(1), i, 0));
  }

  std::uint64_t* words_ = nullptr;
  stream_t first_ = nullptr, second_ = nullptr, third_ = nullptr;
};

TEST_F(Queues, ACallBlocksWhileItsStreamIsFullAndHoldsUpTheOtherStreams) {
  const auto waits_before = peerlaneSimQueueWaits();
  fill(first_);
  CU_OK(cuStreamWriteValue64_v2(second_, word(2), 1, 0)) << "nobody blocks yet";
  CU_OK(cuStreamSynchronize(second_));
  EXPECT_EQ(peerlaneSimQueueWaits(), waits_before);

  std::atomic<bool> is_open{false};
  std::atomic<int> blocked_too_early{0};
  const auto submit = [&](stream_t stream_handle, unsigned destination) {
    EXPECT_EQ(cuStreamWriteValue64_v2(stream_handle, word(destination), 2, 0), error_code::success);
    if (!is_open) ++blocked_too_early;
  };
  std::thread filler([&] { submit(first_, 1); });
  while (peerlaneSimQueueWaits() == waits_before) std::this_thread::yield();
  std::thread bystander([&] { submit(second_, 2); });
  // Asking is possible meanwhile, and that the bystander's stream is idle shows that nothing got into it.
  CU_FAILS(not_ready, cuStreamQuery(first_));
  for (int i = 0; i < 200; ++i) std::this_thread::yield();
  CU_OK(cuStreamQuery(second_));
  EXPECT_EQ(seen(2), 1u);
  is_open = true;
  store(0, 1);
  filler.join();
  bystander.join();
  EXPECT_EQ(blocked_too_early, 0);
  CU_OK(cuStreamSynchronize(first_));
  CU_OK(cuStreamSynchronize(second_));
  EXPECT_EQ(seen(1), 2u);
  EXPECT_EQ(seen(2), 2u);
}

TEST_F(Queues, EndingTheContextFreesABlockedCall) {
  const auto waits_before = peerlaneSimQueueWaits();
  fill(first_);
  std::thread blocked([&] { EXPECT_EQ(cuStreamWriteValue64_v2(first_, word(1), 1, 0), error_code::success); });
  while (peerlaneSimQueueWaits() == waits_before) std::this_thread::yield();
  CU_OK(cuCtxDestroy_v2(context_));
  context_ = nullptr;
  blocked.join();
}

TEST_F(Queues, AWaitBeforeItsProducerInOneHardwareQueueIsStuckUntilReleased) {
  CU_OK(cuStreamWaitValue64_v2(first_, word(3), 1, wait_value::geq));
  CU_OK(cuStreamWriteValue64_v2(third_, word(3), 1, 0));
  CU_OK(cuStreamWriteValue64_v2(second_, word(4), 1, 0));
  CU_OK(cuStreamSynchronize(second_)) << "the other queue goes on";
  const device_ptr memory = allocate(64);
  stream_t fifth = nullptr;
  CU_OK(cuStreamCreate(&fifth, stream_flag::non_blocking));  // queue 0
  stream_t sixth = nullptr;
  CU_OK(cuStreamCreate(&sixth, stream_flag::non_blocking));  // queue 1
  CU_OK(cuMemcpyHtoDAsync_v2(memory, words_ + 4, 8, sixth));
  CU_OK(cuStreamSynchronize(sixth)) << "copies have an engine of their own";
  CU_FAILS(not_ready, cuStreamQuery(first_));
  CU_FAILS(not_ready, cuStreamQuery(third_));
  EXPECT_EQ(seen(3), 0u);
  store(3, 1);
  CU_OK(cuStreamSynchronize(first_));
  CU_OK(cuStreamSynchronize(third_));
  // Producer first: nothing is stuck.
  CU_OK(cuStreamWriteValue64_v2(third_, word(3), 2, 0));
  CU_OK(cuStreamWaitValue64_v2(first_, word(3), 2, wait_value::geq));
  CU_OK(cuStreamSynchronize(first_));
}

}  // namespace
}  // namespace pl::cu
