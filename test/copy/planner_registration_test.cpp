// SPDX-License-Identifier: Apache-2.0
// Registered memory: what the planner no longer asks, and what becomes of it afterwards.
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "test/copy/planner_fixture.hpp"

namespace pl::copy {
namespace {

class PlannerRegistration : public planner_fixture {
 protected:
  host_memory known(const void* pointer, std::size_t bytes) const { return inspect_host(cuda_, pointer, bytes); }
};

TEST_F(PlannerRegistration, HostMemoryIsPinnedForAsLongAsItLives) {
  open();
  std::vector<unsigned char> host(100'000, 1);
  EXPECT_FALSE(known(host.data(), host.size()).is_pinned);
  {
    auto kept = planner_->register_host_memory(host.data() + 10, host.size() - 20, 0);
    ASSERT_TRUE(kept) << kept.error().message;
    EXPECT_TRUE(known(host.data() + 10, host.size() - 20).is_pinned);
  }
  EXPECT_FALSE(known(host.data() + 10, host.size() - 20).is_pinned);
}

TEST_F(PlannerRegistration, CopiesOfRegisteredHostMemoryAreOfThePinnedKind) {
  // By the engine for pinned memory, by the ring for pageable: the way tells what the planner took it for.
  open(curve(direction::to_host, other_side::pinned, {method::copy_engine, 1}) +
       curve(direction::to_host, other_side::pageable, {method::bounce, 1}));
  const test::device_buffer device(200'000);
  const auto data = test::random_bytes(200'000, 3);
  test::set_device_bytes(device.pointer(), data);
  std::vector<unsigned char> host(200'000);
  const transfer transfer{direction::to_host, address_of(host.data()), device.pointer(), host.size()};
  ASSERT_TRUE(planner_->copy(transfer));
  EXPECT_EQ(taken(method::bounce), 1u);
  EXPECT_EQ(host, data);
  {
    auto kept = planner_->register_host_memory(host.data(), host.size(), 0);
    ASSERT_TRUE(kept) << kept.error().message;
    std::fill(host.begin(), host.end(), 0);
    ASSERT_TRUE(planner_->copy(transfer));
    EXPECT_EQ(taken(method::copy_engine), 1u);
    EXPECT_EQ(host, data);
  }
  ASSERT_TRUE(planner_->copy(transfer));
  EXPECT_EQ(taken(method::bounce), 2u) << "the registration has ended";
}

// CUDA pins memory once: the second registration must survive the end of the first.
TEST_F(PlannerRegistration, HostMemoryStaysPinnedForTheLastOfItsRegistrations) {
  open();
  auto other = planner::open(cuda_, {});
  ASSERT_TRUE(other);
  std::vector<unsigned char> host(100'000, 1);
  auto first = planner_->register_host_memory(host.data(), host.size(), 0);
  auto same = planner_->register_host_memory(host.data(), host.size(), 0);
  auto part = (*other)->register_host_memory(host.data() + 50'000, 100, 0);
  ASSERT_TRUE(first && same && part);
  *first = {};
  EXPECT_TRUE(known(host.data(), host.size()).is_pinned);
  *same = {};
  EXPECT_TRUE(known(host.data() + 50'000, 100).is_pinned);
  *part = {};
  EXPECT_FALSE(known(host.data() + 50'000, 100).is_pinned);
}

// Another thread's copy sees the pages pinned for as long as this one takes, and must not count on it.
TEST_F(PlannerRegistration, PagesOfOneCopyAreNotPinnedForAnother) {
  open(curve(direction::to_device, other_side::pinned, {method::engine_copy, 2}) +
       curve(direction::to_device, other_side::pageable, {method::registered, 1}));
  constexpr std::size_t kBytes = 1 << 20;
  const auto host = test::random_bytes(kBytes, 4);
  std::vector<std::thread> threads;
  std::atomic<int> refused{0};
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      const test::current_device context(0);
      const test::device_buffer device(kBytes);
      for (int round = 0; round < 200 && refused == 0; ++round)
        if (!planner_->copy({direction::to_device, device.pointer(), address_of(host.data()), kBytes})) ++refused;
      if (test::device_bytes(device.pointer(), kBytes) != host) ++refused;
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(refused, 0);
  EXPECT_GT(taken(method::registered), 0u);
}

TEST_F(PlannerRegistration, MemoryThatTheApplicationPinnedStaysPinned) {
  open();
  void* pinned = nullptr;
  ASSERT_EQ(cuda_.cuMemHostAlloc(&pinned, 8192, 0), 0);
  {
    auto kept = planner_->register_host_memory(pinned, 8192, 0);
    ASSERT_TRUE(kept) << kept.error().message;
  }
  EXPECT_TRUE(known(pinned, 8192).is_pinned);
  EXPECT_EQ(cuda_.cuMemFreeHost(pinned), 0);
}

TEST_F(PlannerRegistration, HostMemoryThatCannotBeRegisteredIsRefused) {
  open();
  EXPECT_EQ(planner_->register_host_memory(nullptr, 10, 0).code(), EINVAL);
  std::vector<unsigned char> host(4096 * 4);
  EXPECT_EQ(planner_->register_host_memory(host.data(), 0, 0).code(), EINVAL);
  auto part = planner_->register_host_memory(host.data() + 4096, 100, 0);
  ASSERT_TRUE(part);
  EXPECT_EQ(planner_->register_host_memory(host.data(), host.size(), 0).code(), EBUSY);
  EXPECT_FALSE(planner_->register_host_memory(host.data(), 100, 99)) << "no such device";
}

TEST_F(PlannerRegistration, SlotsRunOutAndComeBack) {
  open();
  std::vector<unsigned char> host(70 * 8192);
  std::vector<planner::registration> kept;
  for (int i = 0; i < 64; ++i) {
    auto one = planner_->register_host_memory(&host[static_cast<std::size_t>(i) * 8192 + 4096], 1, 0);
    ASSERT_TRUE(one) << i << ": " << one.error().message;
    kept.push_back(*std::move(one));
  }
  EXPECT_EQ(planner_->register_host_memory(&host[69 * 8192], 1, 0).code(), ENOSPC);
  kept.pop_back();
  EXPECT_TRUE(planner_->register_host_memory(&host[69 * 8192], 1, 0));
  kept.clear();
}

}  // namespace
}  // namespace pl::copy
