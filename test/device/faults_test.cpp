// SPDX-License-Identifier: Apache-2.0
// What goes wrong with transfers that kernels start: each ends with an error within its time-out, on the host and in
// kernels.
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <random>
#include <thread>

#include "test/device/session_fixture.hpp"

namespace {

using namespace pl;
using namespace pl::test;

class device_faults : public device_session {
 protected:
  std::vector<long long> put(const peerlane_device_ring& by_ring, const peerlane_device_window& destination,
                             std::uint64_t offset = 0, std::uint64_t bytes = 64) {
    return run("put_once", 1, 1, by_ring, destination, offset, gpu_, std::uint64_t{0}, bytes,
               unsigned{PEERLANE_DEVICE_FLUSHED});
  }
  // The reason of a ring's end, which the session's thread notices.
  failure reason_of(unsigned index) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (std::chrono::steady_clock::now() < deadline) {
      if (auto now = session_->ring(index).read(); now.reason) return *now.reason;
      std::this_thread::yield();
    }
    return {0, "the ring goes on"};
  }
};

INSTANTIATE_TEST_SUITE_P(backends, device_faults, kRingBackends, name_of_backend);

TEST_P(device_faults, OutsideOfAWindow) {
  open();
  EXPECT_TRUE(are_all(put(ring(), far_, kWindowBytes - 63), PEERLANE_DEVICE_ERANGE));
  EXPECT_TRUE(are_all(put(ring(), far_, ~std::uint64_t{0}), PEERLANE_DEVICE_ERANGE));
  EXPECT_TRUE(are_all(put(ring(), far_, 0, kWindowBytes + 1), PEERLANE_DEVICE_ERANGE));
  EXPECT_TRUE(are_all(put(ring(), far_, 0, (std::uint64_t{1} << 31) + 1), PEERLANE_DEVICE_EINVAL));
  EXPECT_TRUE(are_all(put(ring(), far_, kWindowBytes - 64), 0));
  EXPECT_TRUE(are_all(put(ring(), far_, kWindowBytes, 0), 0));
  EXPECT_EQ(session_->ring(0).read().posted, 2u);
}

// A stray write of a kernel into the ring. The CPU reads segments, so nothing in them may lead it out of its own memory.
TEST_P(device_faults, WhatIsNoSegmentEndsTheRing) {
  constexpr std::uint32_t kImmediate = 4u << 29, kIncreasing = 1u << 29;
  std::minstd_rand random(7);
  for (unsigned round = 0; round < 200; ++round) {
    open(kLongTimeoutNs);
    std::uint32_t segment[PEERLANE_DEVICE_SEGMENT_BYTES / 4] = {};
    for (auto& word : segment) {
      word = static_cast<std::uint32_t>(random());
      if (random() % 2 == 0) word |= random() % 2 == 0 ? kImmediate : kIncreasing;
    }
    segment[0] = round == 0 ? kImmediate | 0x1fff0fff : round == 1 ? kIncreasing | 4u << 16 | 0xfff : segment[0];
    segment[1] = round < 2 ? 0 : segment[1];
    const std::uint64_t place = ring().segments + PEERLANE_DEVICE_SEGMENT_BYTES;
    must(cuda().cuMemcpyHtoD_v2(place, segment, PEERLANE_DEVICE_MARK_AT));
    must(cuda().cuStreamWriteValue32_v2(nullptr, place + PEERLANE_DEVICE_MARK_AT, 1, cu::write_value::standard));
    const failure reason = reason_of(0);
    EXPECT_EQ(reason.code, EIO) << round << reason.message;
    session_.reset();
  }
}

// A window that was released: the engine meets no memory, the ring ends, the other ring goes on.
TEST_P(device_faults, AReleasedWindow) {
  open(kShortTimeoutNs * 10, 64, 2);
  cu::device_ptr memory = 0;
  must(cuda().cuMemAlloc_v2(&memory, 65536));
  const auto gone = add(memory, 65536);
  EXPECT_TRUE(are_all(put(ring(0), gone), 0));
  ASSERT_TRUE(session_->remove_window(gone));
  EXPECT_TRUE(are_all(put(ring(0), gone), PEERLANE_DEVICE_EIO));
  EXPECT_TRUE(are_all(put(ring(0), far_), PEERLANE_DEVICE_EIO));  // for good
  const failure reason = reason_of(0);
  EXPECT_EQ(reason.code, EIO);
  const char* const cause = GetParam() == device::ring_backend::channels ? "Xid 31" : "no window has";
  EXPECT_NE(reason.message.find(cause), std::string::npos) << reason.message;
  EXPECT_TRUE(are_all(put(ring(1), far_), 0));
  EXPECT_EQ(session_->remove_window(gone).code(), EINVAL);
  must(cuda().cuMemFree_v2(memory));
}

// Releasing waits for what was posted: the bytes are there afterwards, and none is written later.
TEST_P(device_faults, ReleasingWaitsForWhatWasPosted) {
  open(kLongTimeoutNs, 64);
  const auto sent = fill_device(device_, 21);
  const auto window = add(device_ + kWindowBytes, kWindowBytes);
  EXPECT_TRUE(are_all(run("put_pieces", 1, 1, ring(), window, gpu_, std::uint64_t{200'000}, std::uint64_t{1}), 0));
  ASSERT_TRUE(session_->remove_window(window));
  const auto now = session_->ring(0).read();
  EXPECT_EQ(now.posted, now.completed);
  EXPECT_FALSE(now.reason);
  const auto got = read_device(device_ + kWindowBytes, 200'000);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), sent.begin()));
}

// A thread that ends between its ticket and its segment: those behind it give up, and the host learns of it.
TEST_P(device_faults, AKernelThatEndsInTheMiddle) {
  open(kShortTimeoutNs, 64, 2);
  EXPECT_TRUE(are_all(put(ring(0), far_), 0));
  run("abandon", 1, 1, ring(0));
  EXPECT_TRUE(are_all(run("try_own", 1, 1, ring(0)), PEERLANE_DEVICE_EBUSY));
  EXPECT_TRUE(are_all(put(ring(0), far_), PEERLANE_DEVICE_ETIMEDOUT));
  // More than the ring holds stand behind the hole: a full ring is a time-out too, and ends it.
  const auto answers = run("put_pieces", 2, 8, ring(0), far_, gpu_, std::uint64_t{3000}, std::uint64_t{5});
  EXPECT_TRUE(are_all(answers, PEERLANE_DEVICE_ETIMEDOUT));
  EXPECT_EQ(reason_of(0).code, ETIMEDOUT);
  EXPECT_TRUE(are_all(put(ring(1), far_), 0));
}

TEST_P(device_faults, AWordThatNeverComes) {
  open(kShortTimeoutNs);
  EXPECT_TRUE(are_all(run("wait_in_vain", 1, 4, far_, std::uint64_t{4096}, kShortTimeoutNs), PEERLANE_DEVICE_ETIMEDOUT));
  EXPECT_TRUE(
      are_all(run("wait_in_vain", 1, 1, far_, std::uint64_t{kWindowBytes - 3}, kShortTimeoutNs), PEERLANE_DEVICE_ERANGE));
  EXPECT_TRUE(are_all(run("wait_in_vain", 1, 1, far_, std::uint64_t{2}, kShortTimeoutNs), PEERLANE_DEVICE_EINVAL));
  auto unreachable = far_;
  unreachable.address = 0;
  EXPECT_TRUE(are_all(run("wait_in_vain", 1, 1, unreachable, std::uint64_t{0}, kShortTimeoutNs), PEERLANE_DEVICE_EINVAL));
}

// Kernels that wait while the host closes the ring.
TEST_P(device_faults, ClosingARingThatKernelsUse) {
  open(kLongTimeoutNs, 64);
  run("abandon", 1, 1, ring());  // so that they wait
  const auto handle = ring();
  launch("put_once", 2, 4, nullptr, handle, far_, std::uint64_t{0}, gpu_, std::uint64_t{0}, std::uint64_t{64}, 0u,
         std::uint64_t{answers_});
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (session_->ring(0).read().posted < 9 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  session_->ring(0).close();
  for (const long long one : answers_of(8)) EXPECT_EQ(one, PEERLANE_DEVICE_ESHUTDOWN);
  EXPECT_TRUE(run("put_once", 1, 1, handle, far_, std::uint64_t{0}, gpu_, std::uint64_t{0}, std::uint64_t{64}, 0u)[0] ==
              PEERLANE_DEVICE_ESHUTDOWN);
}

TEST_P(device_faults, WindowsThatCannotBe) {
  open();
  EXPECT_EQ(session_->add_window(0, 4096).code(), EINVAL);
  EXPECT_EQ(session_->add_window(device_, 0).code(), EINVAL);
  EXPECT_EQ(session_->add_window(device_, ~std::uint64_t{0} - device_).code(), EINVAL);
  EXPECT_NE(session_->add_window(device_, std::uint64_t{1} << 40).code(), 0);  // more than the allocation
  EXPECT_NE(session_->add_window(4096, 4096).code(), 0);                       // nothing is there
  std::vector<std::byte> host(4096);
  const auto begin = reinterpret_cast<std::uint64_t>(host.data());
  for (const std::uint64_t bytes : {~std::uint64_t{0}, ~std::uint64_t{0} - 4096, 0 - begin, 1 - begin})
    EXPECT_EQ(session_->add_window(begin, bytes).code(), EINVAL) << bytes;
}

TEST_P(device_faults, OptionsThatCannotBe) {
  for (const std::uint32_t segments : {0u, 32u, 100u, 8192u, 1u << 31}) {
    device::session_options wanted;
    wanted.backend = GetParam();
    wanted.ring.segments = segments;
    EXPECT_EQ(device::session::open(cuda(), wanted).code(), EINVAL) << segments;
  }
  device::session_options wanted;
  wanted.rings = 17;
  EXPECT_EQ(device::session::open(cuda(), wanted).code(), EINVAL);
}

// Host memory that CUDA does not know: the engine moves it, kernels do not load from it.
TEST_P(device_faults, OrdinaryHostMemory) {
  open();
  std::vector<std::byte> memory(300'000, std::byte{0});
  const auto window = add(reinterpret_cast<std::uint64_t>(memory.data()), memory.size());
  EXPECT_EQ(window.address, 0u);
  const auto sent = fill_device(device_, 8);
  EXPECT_TRUE(are_all(put(ring(), window, 7, 299'000), 0));
  EXPECT_TRUE(std::equal(memory.begin() + 7, memory.begin() + 299'007, sent.begin()));
  ASSERT_TRUE(session_->remove_window(window));
}

// A window by descriptor, to a session that has nothing else of it.
TEST_P(device_faults, MemoryOfAnotherSession) {
  open();
  if (GetParam() == device::ring_backend::proxy) {
    const auto refused = session_->share(far_);
    EXPECT_EQ(refused.code(), ENOTSUP);
    EXPECT_NE(refused.error().message.find("it was asked for"), std::string::npos) << refused.error().message;
    return;
  }
  int sockets[2] = {};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  const auto shared = session_->share(far_);
  ASSERT_TRUE(shared) << shared.error().message;
  ASSERT_TRUE(dma::send_region(sockets[0], *shared));
  const auto received = dma::receive_region(sockets[1], 10'000);
  ASSERT_TRUE(received) << received.error().message;
  const auto window = session_->add_shared(*received);
  ASSERT_TRUE(window) << window.error().message;
  EXPECT_EQ(window->address, 0u);
  EXPECT_NE(window->dma, far_.dma);
  const auto sent = fill_device(device_, 33);
  EXPECT_TRUE(are_all(put(ring(), *window, 4096, 50'000), 0));
  const auto got = read_device(device_ + kWindowBytes, 60'000);
  EXPECT_TRUE(std::equal(got.begin() + 4096, got.begin() + 54'096, sent.begin()));
  EXPECT_EQ(session_->share(host_window_).code(), ENOTSUP);
  const auto odd = add(device_ + 4096, 65536);
  EXPECT_EQ(session_->share(odd).code(), EINVAL);
  close(sockets[0]);
  close(sockets[1]);
}

// Without channels the session says so where they are asked for, and else works without.
TEST_P(device_faults, NoChannels) {
  ASSERT_EQ(setenv("PEERLANE_SIM_MODE", "mps", 1), 0);
  device::session_options wanted;
  wanted.backend = GetParam();
  const auto asked = device::session::open(cuda(), wanted);
  auto automatic = device::session::open(cuda(), {});
  ASSERT_EQ(setenv("PEERLANE_DEVICE_RINGS", "dma", 1), 0);
  const auto by_variable = device::session::open(cuda(), {});
  unsetenv("PEERLANE_DEVICE_RINGS");
  unsetenv("PEERLANE_SIM_MODE");
  EXPECT_EQ(by_variable.code(), ENOTSUP);
  if (GetParam() == device::ring_backend::channels) {
    ASSERT_FALSE(asked);
    EXPECT_EQ(asked.code(), ENOTSUP);
    EXPECT_NE(asked.error().message.find("DMA channels"), std::string::npos) << asked.error().message;
  } else {
    ASSERT_TRUE(asked) << asked.error().message;
    EXPECT_EQ((*asked)->why_proxy(), "it was asked for");
  }
  ASSERT_TRUE(automatic) << automatic.error().message;
  EXPECT_NE((*automatic)->why_proxy().find("MPS"), std::string::npos) << (*automatic)->why_proxy();
  EXPECT_EQ((*automatic)->ring(0).handle().by_proxy, 1u);
  session_ = std::move(*automatic);
  gpu_ = add(device_, kWindowBytes);
  far_ = add(device_ + kWindowBytes, kWindowBytes);
  EXPECT_TRUE(are_all(put(ring(), far_), 0));
}

}  // namespace
