// SPDX-License-Identifier: Apache-2.0
// The parts of shm queues that need no GPU: counts of a late peer, named memory, wake-ups.
#include "triggered/shm_put_queue.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "triggered/thread_wakeup.hpp"

namespace pl::triggered {
namespace {

using namespace std::chrono_literals;

TEST(shm_count, a_late_peer_does_not_count_in_somebody_elses_channel) {
  shm_count count;
  count.word.store(shm_count::make(7, 0));
  EXPECT_TRUE(count.advance(7, 0, 1));
  EXPECT_EQ(count.count(), 1u);
  count.word.store(shm_count::make(8, 0));  // used again
  EXPECT_FALSE(count.advance(7, 1, 2));
  EXPECT_FALSE(count.advance(7, 0, 1));
  EXPECT_EQ(count.count(), 0u);
  EXPECT_TRUE(count.advance(8, 0, 5));
  EXPECT_EQ(count.count(), 5u);
}

TEST(put_chunking, what_is_cut_into_how_many) {
  const put_chunking cut;
  EXPECT_EQ(chunks_of(0, 4096), 0u);
  EXPECT_EQ(chunks_of(kInlineBytes, 4096), 0u);
  EXPECT_EQ(chunks_of(kInlineBytes + 1, 16 << 10), 1u);
  EXPECT_EQ(chunks_of(16 << 10, 16 << 10), 1u);
  EXPECT_EQ(chunks_of((16 << 10) + 1, 16 << 10), 2u);
  EXPECT_FALSE(cut.is_spread(kInlineBytes));
  EXPECT_TRUE(cut.is_spread(kInlineBytes + 1));
  EXPECT_TRUE(cut.is_spread(kMaxSpreadBytes));
  EXPECT_FALSE(cut.is_spread(kMaxSpreadBytes + 1));
  EXPECT_EQ(cut.chunk_of(kMaxSpreadBytes), kSpreadChunkBytes);
  EXPECT_EQ(cut.chunk_of(kMaxSpreadBytes + 1), std::size_t{64} << 10);
  EXPECT_EQ(cut.chunk_of((512u << 10) - 1), std::size_t{64} << 10);
  EXPECT_EQ(cut.chunk_of(512u << 10), kShmChunkBytes);
  EXPECT_EQ((put_chunking{.chunk_bytes = kShmChunkBytes, .spread_limit = 0}.chunk_of(64u << 20)), kShmChunkBytes);
}

TEST(put_chunking, the_environment_chooses_within_bounds) {
  setenv("PEERLANE_STREAM_CHUNK", "1M", 1);
  setenv("PEERLANE_STREAM_SPREAD", "1G", 1);
  EXPECT_EQ(put_chunking::from_environment(true).chunk_bytes, kShmChunkBytes);
  EXPECT_EQ(put_chunking::from_environment(true).spread_limit, kMaxSpreadBytes);
  EXPECT_EQ(put_chunking::from_environment(false).spread_limit, 0u);
  setenv("PEERLANE_STREAM_CHUNK", "1", 1);
  setenv("PEERLANE_STREAM_SPREAD", "0", 1);
  EXPECT_EQ(put_chunking::from_environment(true).chunk_bytes, kMinChunkBytes);
  EXPECT_FALSE(put_chunking::from_environment(true).is_spread(kInlineBytes + 1));
  unsetenv("PEERLANE_STREAM_CHUNK");
  unsetenv("PEERLANE_STREAM_SPREAD");
  EXPECT_EQ(put_chunking::from_environment(true).chunk_bytes, put_chunking{}.chunk_bytes);
  EXPECT_EQ(put_chunking::from_environment(true).spread_limit, put_chunking{}.spread_limit);
}

TEST(shared_memory, nobody_can_shrink_it) {
  auto made = shared_memory::make("peerlane-test", 5000);
  ASSERT_TRUE(made);
  EXPECT_NE(truncate(("/proc/self/fd/" + std::to_string(made->own_name().fd)).c_str(), 0), 0);
  EXPECT_EQ(errno, EPERM);
}

TEST(shared_memory, what_was_named_is_found_and_nothing_else) {
  auto made = shared_memory::make("peerlane-test", 5000);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->size_bytes(), 8192u);
  made->data()[4999] = std::byte{42};
  auto opened = shared_memory::open(made->own_name());
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(opened->data()[4999], std::byte{42});
  auto wrong = made->own_name();
  wrong.inode += 1;
  EXPECT_EQ(shared_memory::open(wrong).code(), ESTALE);
  wrong = made->own_name();
  wrong.bytes += 4096;
  EXPECT_EQ(shared_memory::open(wrong).code(), ESTALE);
  wrong.bytes = 0;
  EXPECT_EQ(shared_memory::open(wrong).code(), EINVAL);
  wrong = made->own_name();
  wrong.fd = 1 << 20;
  EXPECT_EQ(shared_memory::open(wrong).code(), ENOENT);
}

TEST(thread_wakeup, a_ring_before_the_wait_is_heard) {
  const auto wakeup = thread_wakeup::make();
  wakeup->ring();
  EXPECT_TRUE(wakeup->wait(1h));
  EXPECT_FALSE(wakeup->wait(1ns));
  wakeup->ring();
  wakeup->ring();
  EXPECT_TRUE(wakeup->wait(1h));
  EXPECT_FALSE(wakeup->wait(1ns));
}

// No ring is lost, whenever it comes: the wait would last for an hour.
TEST(thread_wakeup, no_ring_is_lost) {
  const auto wakeup = thread_wakeup::make();
  std::atomic<int> rung{0}, heard{0};
  std::thread other([&] {
    for (int i = 1; i <= 2000; ++i) {
      rung.store(i);
      wakeup->ring();
      while (heard.load() < i) std::this_thread::yield();
    }
  });
  for (int seen = 0; seen < 2000; heard.store(seen = rung.load())) EXPECT_TRUE(wakeup->wait(1h));
  other.join();
}

TEST(thread_wakeup, another_process_sees_the_waiter_and_wakes_it) {
  const auto wakeup = thread_wakeup::make();
  const auto name = wakeup->own_name();
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    const auto theirs = thread_wakeup::open(name);
    if (!theirs) _exit(1);
    while (!(*theirs)->is_asleep()) std::this_thread::yield();
    (*theirs)->ring();
    _exit(0);
  }
  wakeup->set_asleep(true);
  EXPECT_TRUE(wakeup->wait(1h));
  wakeup->set_asleep(false);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace pl::triggered
