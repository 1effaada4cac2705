// SPDX-License-Identifier: Apache-2.0
// Transfers that kernels start, on the simulated GPU, whose copy engine fetches commands as early as a real one.
#include <algorithm>
#include <thread>

#include "test/device/session_fixture.hpp"

extern "C" {
void peerlaneSimSetDisorder(unsigned long long seed, unsigned delay_us);
unsigned long long peerlaneSimLastTimeslice();
void peerlaneSimRefuseTimeslices(int is_on);
}

namespace {

using namespace pl;
using namespace pl::test;

INSTANTIATE_TEST_SUITE_P(backends, device_session, kRingBackends, name_of_backend);

TEST_P(device_session, AKernelMovesBytesToTheHostAndBack) {
  open();
  const auto sent = fill_device(device_, 3);
  std::memset(host_, 0, kWindowBytes);
  EXPECT_TRUE(are_all(run("put_once", 1, 1, ring(), host_window_, std::uint64_t{5}, gpu_, std::uint64_t{1001},
                          std::uint64_t{70'000}, unsigned{PEERLANE_DEVICE_FLUSHED}),
                      0));
  EXPECT_TRUE(std::equal(host_ + 5, host_ + 5 + 70'000, sent.begin() + 1001));
  EXPECT_EQ(host_[4], std::byte{0});
  EXPECT_EQ(host_[70'005], std::byte{0});

  for (std::size_t i = 0; i < kWindowBytes; ++i) host_[i] = static_cast<std::byte>(i * 7);
  EXPECT_TRUE(are_all(run("put_once", 1, 1, ring(), far_, std::uint64_t{0}, host_window_, std::uint64_t{0},
                          std::uint64_t{kWindowBytes}, unsigned{PEERLANE_DEVICE_FLUSHED}),
                      0));
  const auto got = read_device(device_ + kWindowBytes, kWindowBytes);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), host_));
}

// More than fits into the ring, by threads of several blocks: each byte once and at its place.
TEST_P(device_session, ManyThreadsPostIntoOneRing) {
  open();
  const auto sent = fill_device(device_, 9);
  constexpr unsigned kBlocks = 6, kThreads = 16;
  constexpr std::uint64_t kSlotBytes = 8000;
  for (const auto& [window, bytes] : {std::pair{host_window_, host_}, std::pair{far_, static_cast<std::byte*>(nullptr)}}) {
    std::memset(host_, 0, kWindowBytes);
    must(cuda().cuMemsetD8_v2(device_ + kWindowBytes, 0, kWindowBytes));
    must(cuda().cuCtxSynchronize());
    EXPECT_TRUE(are_all(run("put_pieces", kBlocks, kThreads, ring(), window, gpu_, kSlotBytes, std::uint64_t{77}), 0));
    constexpr std::size_t kMoved = kBlocks * kThreads * kSlotBytes;
    std::vector<std::byte> got = bytes != nullptr ? std::vector<std::byte>(bytes, bytes + kMoved + 64)
                                                  : read_device(device_ + kWindowBytes, kMoved + 64);
    EXPECT_TRUE(std::equal(sent.begin(), sent.begin() + kMoved, got.begin()));
    EXPECT_TRUE(std::all_of(got.begin() + kMoved, got.end(), [](std::byte one) { return one == std::byte{0}; }));
  }
  const auto now = session_->ring(0).read();
  EXPECT_EQ(now.posted, now.completed);
  EXPECT_GT(now.posted, 64u * 20);  // the ring was gone through many times
  EXPECT_FALSE(now.reason);
}

// A ring for one thread, gone through many times, and given back.
TEST_P(device_session, OneThreadHasARingForItself) {
  open();
  const auto sent = fill_device(device_, 17);
  constexpr std::uint64_t kMoved = 100'000;
  EXPECT_TRUE(are_all(run("put_pieces_alone", 1, 1, ring(), far_, gpu_, kMoved), 0));
  const auto got = read_device(device_ + kWindowBytes, kMoved);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), sent.begin()));
  const auto now = session_->ring(0).read();
  EXPECT_EQ(now.posted, now.completed);
  EXPECT_GT(now.posted, 64u * 4);
}

TEST_P(device_session, AWarpPostsForItsThreads) {
  open();
  const auto sent = fill_device(device_, 1);
  EXPECT_TRUE(are_all(run("put_each_piece", 4, 8, ring(), far_, gpu_, std::uint64_t{8192}, std::uint64_t{64}), 0));
  const auto got = read_device(device_ + kWindowBytes, 32 * 8192);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), sent.begin()));
}

// What a warp of 32 threads posts: each byte of both puts at its place, nothing between them.
TEST_P(device_session, ASegmentHoldsTwoPuts) {
  open();
  constexpr std::uint64_t kPiece = 512;
  constexpr unsigned kCount = 150;  // the ring is gone through twice
  for (const unsigned flags : {0u, unsigned{PEERLANE_DEVICE_FLUSHED}, unsigned{PEERLANE_DEVICE_ORDERED}}) {
    const auto sent = fill_device(device_, 5 + flags);
    must(cuda().cuMemsetD8_v2(device_ + kWindowBytes, 0, kWindowBytes));
    must(cuda().cuCtxSynchronize());
    EXPECT_TRUE(are_all(run("put_pairs", 1, 1, ring(), far_, gpu_, kPiece, kCount, flags), 0));
    const auto got = read_device(device_ + kWindowBytes, 2 * kCount * kPiece);
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(got[i], i % (2 * kPiece) < 2 * kPiece - 3 ? sent[i] : std::byte{0}) << i << " with flags " << flags;
  }
}

TEST_P(device_session, ABlockMovesWhatItsThreadsWrote) {
  open();
  constexpr unsigned kBlocks = 5, kThreads = 64, kValue = 0x1000;
  const auto words = add(device_ + 2 * kWindowBytes - 4096, 4096);
  EXPECT_TRUE(are_all(run("put_as_block", kBlocks, kThreads, ring(), host_window_, gpu_, words, kValue), 0));
  const auto* const got = reinterpret_cast<const std::uint32_t*>(host_);
  for (unsigned i = 0; i < kBlocks * kThreads; ++i) ASSERT_EQ(got[i], kValue + i % kThreads);
  std::uint32_t signals[kBlocks];
  must(cuda().cuMemcpyDtoH_v2(signals, device_ + 2 * kWindowBytes - 4096, sizeof signals));
  for (const std::uint32_t one : signals) EXPECT_EQ(one, kValue);
}

// Two kernels play ping-pong: what is put is there when its signal is seen.
TEST_P(device_session, ASignalComesBehindItsBytes) {
  open();
  cu::stream_t first = nullptr, second = nullptr;
  must(cuda().cuStreamCreate(&first, 1));
  must(cuda().cuStreamCreate(&second, 1));
  const auto words = add(device_ + 2 * kWindowBytes - 4096, 4096);
  must(cuda().cuMemsetD8_v2(device_ + 2 * kWindowBytes - 4096, 0, 4096));
  must(cuda().cuCtxSynchronize());
  const auto data = add(device_, 4096), remote = add(device_ + kWindowBytes, 4096);
  constexpr unsigned kRounds = 60;
  launch("consume", 1, 1, second, remote, words, kRounds, kLongTimeoutNs, std::uint64_t{answers_});
  launch("produce", 1, 1, first, ring(), data, remote, words, kRounds, std::uint64_t{answers_ + 8});
  const auto answers = answers_of(2);
  EXPECT_EQ(answers[0], 0) << "words that were old, or an error";
  EXPECT_EQ(answers[1], 0);
  must(cuda().cuStreamDestroy_v2(first));
  must(cuda().cuStreamDestroy_v2(second));
}

TEST_P(device_session, WhatIsOrderedReadsWhatWasWritten) {
  open();
  constexpr std::uint64_t kBytes = 3000;
  for (const unsigned mode : {0u, 1u}) {
    const auto sent = fill_device(device_, 40 + mode);
    EXPECT_TRUE(are_all(run("chain", 1, 1, ring(), gpu_, kBytes, 30u, mode), 0));
    const auto got = read_device(device_, 3 * kBytes);
    for (unsigned part = 0; part < 3; ++part)
      EXPECT_TRUE(std::equal(got.begin() + part * kBytes, got.begin() + (part + 1) * kBytes, sent.begin())) << mode;
  }
}

// Three segments that the engine gets at once, since the first is written last: with order the second put reads what the
// first has written; without, the engine's model shows that it does not, and the proxy's stream is in order anyway.
TEST_P(device_session, SegmentsWrittenOutOfOrder) {
  open();
  constexpr std::uint64_t kBytes = 3000;
  for (const unsigned mode : {0u, 1u, 2u}) {
    const auto sent = fill_device(device_, 60 + mode);
    EXPECT_TRUE(are_all(run("held_chain", 1, 1, ring(), gpu_, kBytes, mode), 0)) << mode;
    const auto got = read_device(device_, 3 * kBytes);
    EXPECT_TRUE(std::equal(got.begin() + kBytes, got.begin() + 2 * kBytes, sent.begin())) << mode;
    EXPECT_EQ(std::equal(got.begin() + 2 * kBytes, got.end(), sent.begin()),
              mode != 2 || GetParam() == device::ring_backend::proxy)
        << mode;
  }
}

// The thread that refills rings by the engine's interrupts, and by the clock: both go through the ring many times.
TEST_P(device_session, TheThreadIsWokenByTheEngineOrByTheClock) {
  const auto sent = fill_device(device_, 21);
  const bool is_dma = GetParam() == device::ring_backend::channels;
  for (const bool is_woken : {true, false}) {
    wakeups_ = is_woken ? copy::trial::always : copy::trial::never;
    open(kLongTimeoutNs, 64, 2);
    EXPECT_EQ(session_->counts().sleeps_by_descriptor, is_woken && is_dma);
    for (unsigned index = 0; index < 2; ++index) {
      std::memset(host_, 0, kWindowBytes);
      EXPECT_TRUE(are_all(
          run("put_pieces", 2, 8, ring(index), host_window_, gpu_, std::uint64_t{8000}, std::uint64_t{index + 1}), 0));
      EXPECT_TRUE(std::equal(sent.begin(), sent.begin() + 16 * 8000, host_));
    }
    const auto now = session_->ring(0).read();
    EXPECT_GT(now.posted, 64u * 8);
    EXPECT_EQ(now.posted, now.completed);
    EXPECT_GE(session_->counts().interrupts, is_woken && is_dma ? 4u : 0u);
    EXPECT_EQ(session_->counts().interrupts != 0, is_woken && is_dma);
    session_.reset();
  }
}

// A ring that waits keeps its engine for as long as its time slice: a short one, so that others hardly wait.
TEST_P(device_session, RingsHaveAShortTimeSlice) {
  if (GetParam() != device::ring_backend::channels) GTEST_SKIP() << "the proxy has no channel";
  open();
  EXPECT_EQ(peerlaneSimLastTimeslice(), 2u);
  session_.reset();
  peerlaneSimRefuseTimeslices(1);  // a driver that knows none
  open();
  peerlaneSimRefuseTimeslices(0);
  fill_device(device_, 4);
  EXPECT_TRUE(are_all(run("put_pieces", 1, 1, ring(), host_window_, gpu_, std::uint64_t{4096}, std::uint64_t{1}), 0));
}

// What a kernel stores into host memory is held back until its fence: a put reads it all the same, under every seed.
TEST_P(device_session, APutReadsWhatItsThreadWroteToTheHost) {
  open();
  cu::stream_t first = nullptr, second = nullptr;
  must(cuda().cuStreamCreate(&first, 1));
  must(cuda().cuStreamCreate(&second, 1));
  const auto words = add(device_ + 2 * kWindowBytes - 4096, 4096);
  const auto data = add(reinterpret_cast<std::uint64_t>(host_), 1024), remote = add(device_ + kWindowBytes, 1024);
  for (unsigned long long seed = 1; seed <= 10; ++seed) {
    peerlaneSimSetDisorder(seed, 200);
    must(cuda().cuMemsetD8_v2(device_ + 2 * kWindowBytes - 4096, 0, 4096));
    must(cuda().cuCtxSynchronize());
    launch("consume", 1, 1, second, remote, words, 3u, kLongTimeoutNs, std::uint64_t{answers_});
    launch("produce", 1, 1, first, ring(), data, remote, words, 3u, std::uint64_t{answers_ + 8});
    const auto answers = answers_of(2);
    EXPECT_EQ(answers[0], 0) << "words that were old, or an error, with seed " << seed;
    EXPECT_EQ(answers[1], 0);
  }
  peerlaneSimSetDisorder(0, 0);
  must(cuda().cuStreamDestroy_v2(first));
  must(cuda().cuStreamDestroy_v2(second));
}

}  // namespace
