// SPDX-License-Identifier: Apache-2.0
// Sleeping for operations of a channel, against the simulated resource manager's events.
#include "dma/completion_event.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <set>
#include <thread>
#include <vector>

#include "test/dma/channel_fixture.hpp"

namespace {

using namespace pl;
using test::fake_engine;
using setting = test::channel_setting;

using test::kTimeoutNs;
constexpr int kTimeoutMs = 20'000;

std::unique_ptr<dma::completion_event> open_event(setting& rig, unsigned engine = 2) {
  auto opened = dma::completion_event::open(rig.space, engine);
  EXPECT_TRUE(opened) << opened.error().message;
  return opened ? std::move(*opened) : nullptr;
}

bool is_readable(const dma::completion_event& event, int timeout_ms) {
  pollfd asked{event.descriptor(), POLLIN, 0};
  return poll(&asked, 1, timeout_ms) == 1 && (asked.revents & POLLIN) != 0;
}

std::uint32_t* word(setting& rig, std::size_t offset) { return reinterpret_cast<std::uint32_t*>(rig.host + offset); }
void set(std::uint32_t* word, std::uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

// By descriptor alone: each operation wakes, whatever interrupts came before and between.
TEST(completion_event, EachInterruptWakes) {
  for (const std::uint64_t seed : {0u, 7u}) {
    fake_engine::options options;
    options.seed = seed;
    fake_engine io(options);
    setting rig(io);
    const auto queue = rig.open(), other = rig.open();
    const auto event = open_event(rig);
    for (std::uint32_t round = 1; round <= 500; ++round) {
      event->clear();
      const auto number = queue->fill(rig.host_at(0), round, 4096, dma::ordering::none_flushed);
      ASSERT_TRUE(number);
      if (round % 3 == 0) { ASSERT_TRUE(other->interrupt()); }
      ASSERT_TRUE(queue->interrupt());
      while (!queue->is_done(*number)) {
        ASSERT_TRUE(is_readable(*event, kTimeoutMs)) << "missed in round " << round;
        event->clear();
      }
      ASSERT_EQ(*word(rig, 0), round);
      ASSERT_EQ(*word(rig, 4092), round);
    }
    EXPECT_EQ(io.protocol_errors(), 0);
  }
}

TEST(completion_event, NothingWakesWithoutAnInterrupt) {
  fake_engine io;
  setting rig(io);
  const auto queue = rig.open();
  const auto event = open_event(rig);
  EXPECT_TRUE(queue->wait(*queue->fill(rig.host_at(0), 1, 64), kTimeoutNs));
  EXPECT_FALSE(is_readable(*event, 0));
  EXPECT_TRUE(queue->wait(*queue->interrupt(), kTimeoutNs));
  EXPECT_TRUE(is_readable(*event, kTimeoutMs));
  event->clear();
  EXPECT_FALSE(is_readable(*event, 0));
}

TEST(completion_event, BelongsToOneEngine) {
  fake_engine io;
  setting rig(io);
  dma::channel_options on_zero;
  on_zero.engine = 0;
  const auto second = rig.open(), zero = rig.open(on_zero);
  const auto event = open_event(rig, 0);
  ASSERT_TRUE(second->wait(*second->interrupt(), kTimeoutNs));
  ASSERT_TRUE(zero->wait(*zero->fill(rig.host_at(0), 1, 64), kTimeoutNs));
  EXPECT_FALSE(is_readable(*event, 0));
  ASSERT_TRUE(zero->interrupt());
  EXPECT_TRUE(is_readable(*event, kTimeoutMs));
}

TEST(completion_event, SleepsUntilTheOperationIsDoneAndNotUntilAnothers) {
  fake_engine io;
  setting rig(io);
  const auto queue = rig.open(), other = rig.open();
  const auto event = open_event(rig);
  ASSERT_TRUE(queue->acquire(rig.host_at(0), 1));
  const auto number = queue->fill(rig.host_at(4096), 7, 4096);
  std::thread disturber([&] {
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(other->wait(*other->interrupt(), kTimeoutNs));
    set(word(rig, 0), 1);
  });
  const status done = event->wait(*queue, *number, kTimeoutNs);
  EXPECT_TRUE(done) << done.error().message;
  EXPECT_EQ(*word(rig, 4096), 7u);
  disturber.join();
  EXPECT_TRUE(event->wait(*queue, *number, 0)) << "what is done needs no sleep";
}

TEST(completion_event, SeveralSleepAtOnce) {
  fake_engine io;
  setting rig(io);
  const auto queue = rig.open();
  constexpr unsigned kWaiters = 6, kRounds = 50;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kWaiters; ++i)
    threads.emplace_back([&, i] {
      const auto event = open_event(rig);
      for (std::uint32_t round = 1; round <= kRounds; ++round) {
        const auto number = queue->fill(rig.host_at(i * 4096u), round, 64);
        ASSERT_TRUE(number);
        const status done = event->wait(*queue, *number, kTimeoutNs);
        ASSERT_TRUE(done) << done.error().message;
        ASSERT_EQ(*word(rig, i * 4096u), round);
      }
    });
  for (auto& one : threads) one.join();
  EXPECT_EQ(io.protocol_errors(), 0);
}

TEST(completion_event, AFaultEndsTheSleep) {
  fake_engine io;
  setting rig(io);
  const auto broken = rig.open(), sound = rig.open();
  const auto event = open_event(rig);
  ASSERT_TRUE(broken->acquire(rig.host_at(0), 1));
  const auto number = broken->copy(rig.device_at(0), 0x7f00'0000'0000, 64);
  ASSERT_TRUE(number);
  std::thread later([&] { set(word(rig, 0), 1); });
  const status ended = event->wait(*broken, *number, kTimeoutNs);
  later.join();
  EXPECT_EQ(ended.code(), EIO);
  EXPECT_NE(ended.error().message.find("Xid 31"), std::string::npos) << ended.error().message;
  EXPECT_TRUE(event->wait(*sound, *sound->fill(rig.device_at(0), 1, 64), kTimeoutNs));
}

TEST(completion_event, AnEndOfPatienceIsAnError) {
  fake_engine io;
  setting rig(io);
  const auto queue = rig.open();
  const auto event = open_event(rig);
  const auto number = queue->acquire(rig.host_at(0), 1);
  EXPECT_EQ(event->wait(*queue, *number, 30'000'000).code(), ETIMEDOUT);
  set(word(rig, 0), 1);
  EXPECT_TRUE(event->wait(*queue, *number, kTimeoutNs));
}

// Also through an epoll descriptor inside another, as event loops nest them.
TEST(completion_event, FitsEpoll) {
  fake_engine io;
  setting rig(io);
  const auto queue = rig.open();
  const auto event = open_event(rig);
  const int inner = epoll_create1(EPOLL_CLOEXEC), outer = epoll_create1(EPOLL_CLOEXEC);
  epoll_event wanted{EPOLLIN, {}};
  ASSERT_EQ(epoll_ctl(inner, EPOLL_CTL_ADD, event->descriptor(), &wanted), 0);
  ASSERT_EQ(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &wanted), 0);
  for (std::uint32_t round = 1; round <= 100; ++round) {
    event->clear();
    const auto number = queue->fill(rig.host_at(0), round, 64);
    ASSERT_TRUE(queue->interrupt());
    while (!queue->is_done(*number)) {
      epoll_event got{};
      ASSERT_EQ(epoll_wait(outer, &got, 1, kTimeoutMs), 1);
      event->clear();
    }
  }
  close(outer);
  close(inner);
}

// The driver knows events by client and number: one that is not given back keeps the number from the next.
TEST(completion_event, LeavesNothingBehindAlsoBesideAForkedChild) {
  fake_engine io;
  setting rig(io);
  const auto queue = rig.open();
  const int objects = io.live_objects();
  const auto survivor = open_event(rig);
  std::set<int> numbers;
  for (int round = 0; round < 20; ++round) {
    auto event = open_event(rig);
    ASSERT_NE(event, nullptr);
    numbers.insert(event->descriptor());
    EXPECT_TRUE(event->wait(*queue, *queue->fill(rig.host_at(0), 1, 64), kTimeoutNs));
    if (round != 3) continue;
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(20);
      event.reset();  // must not end the parent's
      _exit(0);
    }
    int ended = -1;
    ASSERT_EQ(waitpid(child, &ended, 0), child);
    EXPECT_EQ(ended, 0);
    EXPECT_TRUE(event->wait(*queue, *queue->fill(rig.host_at(0), 1, 64), kTimeoutNs));
  }
  EXPECT_EQ(numbers.size(), 1u) << "the number comes back each time";
  EXPECT_EQ(io.live_objects(), objects + 1);
  EXPECT_EQ(fcntl(survivor->descriptor(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC) << "a program that is executed has none of it";
  EXPECT_EQ(io.protocol_errors(), 0);
}

TEST(completion_event, EachCallMayFail) {
  int first = 0;
  {
    fake_engine io;
    setting rig(io);
    first = io.calls();
  }
  bool has_passed = false;
  for (int call = first; call < first + 20 && !has_passed; ++call) {
    fake_engine::options options;
    options.failing_call = call;
    fake_engine io(options);
    setting rig(io);
    const int objects = io.live_objects();
    {
      const auto event = dma::completion_event::open(rig.space, 2);
      has_passed = event.ok() && io.calls() <= call;
      EXPECT_TRUE(event || !event.error().message.empty());
    }
    // A call that frees may be the failing one: then its object is left to the end of the client.
    if (!has_passed) { EXPECT_LE(io.live_objects(), objects + 1) << "call " << call; }
  }
  EXPECT_TRUE(has_passed);
}

}  // namespace
