// SPDX-License-Identifier: Apache-2.0
// Sleeping for asynchronous copies in poll and epoll, by whichever way the copies go.
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "copy/completion.hpp"
#include "test/copy/planner_fixture.hpp"

namespace pl::copy {
namespace {

constexpr int kTimeoutMs = 20'000;
constexpr std::size_t kBytes = 200'000;

bool is_readable(int fd, int timeout_ms) {
  pollfd asked{fd, POLLIN, 0};
  return poll(&asked, 1, timeout_ms) == 1;
}

class CompletionDescriptor : public planner_fixture {
 protected:
  void open_with(bool has_channels) {
    auto wanted = by_channels();
    if (!has_channels) wanted.channels = channel_use::never;
    // Channels take what they can; the rest is CUDA's.
    std::string curves;
    for (const auto way : {direction::to_host, direction::to_device})
      if (has_channels) curves += curve(way, other_side::pinned, {method::dma_channel, 1});
    open(curves, wanted);
    if (has_channels) { ASSERT_TRUE(planner_->prepare(0)); }
  }
  completion begin(std::span<const transfer> list, const planner::async_options& wanted = {}) {
    auto begun = planner_->begin(list, wanted);
    EXPECT_TRUE(begun) << begun.error().message;
    return begun ? *std::move(begun) : completion();
  }
  // As an event loop does: how often it was woken.
  static unsigned sleep_until_done(completion& waited) {
    const auto fd = waited.descriptor();
    EXPECT_TRUE(fd) << fd.error().message;
    for (unsigned wakes = 0;; ++wakes) {
      const auto done = waited.test();
      EXPECT_TRUE(done) << done.error().message;
      if (!done || *done) return wakes;
      EXPECT_TRUE(is_readable(*fd, kTimeoutMs)) << "it slept for ever";
    }
  }
};

TEST_F(CompletionDescriptor, WakesForCopiesOfEachKind) {
  for (const bool has_channels : {true, false}) {
    open_with(has_channels);
    for (const auto way : {direction::to_host, direction::to_device, direction::on_device})
      for (const auto side : sides_of(way))
        for (const std::size_t bytes : {std::size_t{100}, kBytes}) {
          SCOPED_TRACE(std::string(name_of(way)) + " " + name_of(side) + (has_channels ? " with channels" : ""));
          const copy_case one(way, side, bytes);
          const auto moved = one.to_transfer();
          completion waited = begin({&moved, 1});
          sleep_until_done(waited);
          EXPECT_TRUE(one.is_copied());
          EXPECT_TRUE(waited.wait());
        }
  }
}

TEST_F(CompletionDescriptor, ACopyByChannelSleepsOnTheGpusInterrupt) {
  open_with(true);
  const copy_case one(direction::to_host, other_side::pinned, kBytes);
  const auto moved = one.to_transfer();
  const auto before = taken(method::dma_channel);
  for (int round = 0; round < 100; ++round) {
    completion waited = begin({&moved, 1});
    sleep_until_done(waited);
  }
  EXPECT_EQ(taken(method::dma_channel) - before, 100u);
  EXPECT_TRUE(one.is_copied());
}

TEST_F(CompletionDescriptor, SeveralSleepAtOnceInOneEpollSet) {
  open_with(true);
  constexpr unsigned kCopies = 8;
  guarded_device device(kCopies * kBytes, 3);
  guarded_host host(context_of(0), kCopies * kBytes, 0);
  const auto data = test::random_bytes(kCopies * kBytes, 5);
  device.set(data);
  const int set = epoll_create1(EPOLL_CLOEXEC);
  std::vector<completion> waited(kCopies);
  for (unsigned i = 0; i < kCopies; ++i) {
    const transfer moved{direction::to_host, host.address() + i * kBytes, device.address() + i * kBytes, kBytes};
    waited[i] = begin({&moved, 1});
    epoll_event wanted{EPOLLIN, {}};
    wanted.data.u32 = i;
    ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, *waited[i].descriptor(), &wanted), 0);
  }
  std::vector<bool> ended(kCopies, false);
  const auto check = [&](unsigned i) {
    if (ended[i]) return;
    const int fd = *waited[i].descriptor();
    const auto done = waited[i].test();
    ASSERT_TRUE(done);
    if (!*done) return;
    ended[i] = true;
    EXPECT_TRUE(epoll_ctl(set, EPOLL_CTL_DEL, fd, nullptr) == 0 || errno == EBADF || errno == ENOENT);
  };
  for (unsigned i = 0; i < kCopies; ++i) check(i);
  while (std::count(ended.begin(), ended.end(), true) != kCopies) {
    epoll_event got[kCopies];
    const int count = epoll_wait(set, got, kCopies, kTimeoutMs);
    ASSERT_GT(count, 0);
    for (int i = 0; i < count; ++i) check(got[i].data.u32);
  }
  EXPECT_EQ(host.get(), data);
  close(set);
}

TEST_F(CompletionDescriptor, WhatIsDoneIsReadableAtOnce) {
  open_with(false);
  completion none;
  ASSERT_TRUE(none.descriptor());
  EXPECT_TRUE(is_readable(*none.descriptor(), 0));
  EXPECT_TRUE(*none.test());
}

TEST_F(CompletionDescriptor, CopiesBehindAStreamSleepUntilItGoesOn) {
  open_with(false);
  cu::stream_t stream = nullptr;
  ASSERT_EQ(cuda_.cuStreamCreate(&stream, cu::stream_flag::non_blocking), 0);
  test::device_buffer gate(4096);
  const std::uint32_t zero = 0;
  ASSERT_EQ(cuda_.cuMemcpyHtoD_v2(gate.pointer(), &zero, sizeof zero), 0);
  ASSERT_EQ(cuda_.cuStreamWaitValue32_v2(stream, gate.pointer(), 1, 0), 0);
  const copy_case one(direction::to_host, other_side::pinned, kBytes);
  const auto moved = one.to_transfer();
  planner::async_options behind;
  behind.has_after = true;
  behind.after = stream;
  completion waited = begin({&moved, 1}, behind);
  const auto fd = waited.descriptor();
  ASSERT_TRUE(fd);
  EXPECT_FALSE(*waited.test());
  EXPECT_FALSE(is_readable(*fd, 30)) << "nothing polls while the stream waits";
  const std::uint32_t go = 1;
  ASSERT_EQ(cuda_.cuMemcpyHtoD_v2(gate.pointer(), &go, sizeof go), 0);
  sleep_until_done(waited);
  EXPECT_TRUE(one.is_copied());
  EXPECT_EQ(cuda_.cuStreamDestroy_v2(stream), 0);
}

TEST_F(CompletionDescriptor, AForkedChildIsRefusedAndTheParentStillWakes) {
  open_with(true);
  const copy_case one(direction::to_host, other_side::pinned, kBytes);
  const auto moved = one.to_transfer();
  completion waited = begin({&moved, 1});
  const auto fd = waited.descriptor();
  ASSERT_TRUE(fd);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);
    const bool is_refused = waited.descriptor().code() == EACCES && waited.test().code() == EACCES;
    _exit(is_refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  sleep_until_done(waited);
  EXPECT_TRUE(one.is_copied());
}

TEST_F(CompletionDescriptor, LeavesNoDescriptorsBehind) {
  open_with(true);
  const copy_case one(direction::to_host, other_side::pinned, kBytes);
  const auto moved = one.to_transfer();
  const auto next_number = [] {
    const int fd = dup(0);
    close(fd);
    return fd;
  };
  int before = 0;
  for (int round = 0; round < 50; ++round) {
    completion waited = begin({&moved, 1});
    if (round % 2 == 0) sleep_until_done(waited);
    else EXPECT_TRUE(waited.descriptor() && waited.wait());
    waited = completion();
    if (round == 1) before = next_number();  // one event of the GPU is kept for the next
  }
  EXPECT_EQ(next_number(), before);
}

}  // namespace
}  // namespace pl::copy
