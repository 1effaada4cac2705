// SPDX-License-Identifier: Apache-2.0
// A device's multiprocessors: up to kMultiprocessors threads, started when there are blocks, gone when idle for a while.
#include <chrono>
#include <deque>
#include <system_error>

#include "sim/launch.hpp"

namespace pl::sim {
namespace {

constexpr std::chrono::milliseconds kLinger{100};

struct executor {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<launch_run>> queue;  // launches with blocks not yet started, in order of arrival
  std::uint64_t pending_blocks = 0;               // of all these launches
  int threads = 0;
  int idle = 0;  // waiting, or woken and not yet here
};

executor& executor_of(int ordinal) {
  static auto* const all = new std::vector<executor>(devices().size());
  return (*all)[static_cast<std::size_t>(ordinal)];
}

void work_loop(executor& self, std::chrono::milliseconds linger) {
  std::unique_lock lock(self.mutex);
  for (;;) {
    ++self.idle;
    const bool has_work = self.changed.wait_for(lock, linger, [&] { return !self.queue.empty(); });
    --self.idle;
    if (!has_work) {
      --self.threads;
      return;
    }
    auto current = self.queue.front();
    const std::uint64_t blocks = current->work->block_count();
    const std::uint64_t index = current->next_block++;
    --self.pending_blocks;
    if (current->next_block == blocks) self.queue.pop_front();
    lock.unlock();
    run_block(*current, index);
    {
      const std::lock_guard done(current->mutex);
      if (++current->finished_blocks == blocks) current->changed.notify_all();
    }
    current = nullptr;
    lock.lock();
  }
}

}  // namespace

void execute_launch(const std::shared_ptr<const launch>& work) {
  executor& pool = executor_of(work->device_ordinal);
  const auto started = std::make_shared<launch_run>();
  started->work = work;
  started->stores = current_writer();
  order_stores();
  bool has_thread = true;
  {
    const std::lock_guard lock(pool.mutex);
    pool.queue.push_back(started);
    const std::uint64_t wanted = work->block_count();
    // As many as there are blocks: each thread that wakes for nothing costs two switches on a machine with few CPUs.
    for (int i = 0; i < pool.idle && wanted > static_cast<std::uint64_t>(i); ++i) pool.changed.notify_one();
    // An idle thread may already have been promised to an earlier launch, whose kernel may wait for this one.
    pool.pending_blocks += wanted;
    try {
      for (int i = pool.idle; pool.pending_blocks > static_cast<std::uint64_t>(i) && pool.threads < kMultiprocessors;
           ++i, ++pool.threads)
        start_thread([&pool] { work_loop(pool, kLinger); });
    } catch (const std::system_error&) { work->fate->fail(code::out_of_memory); }
    has_thread = pool.threads != 0;
    if (!has_thread) ++pool.threads;
  }
  if (!has_thread) work_loop(pool, {});
  std::unique_lock lock(started->mutex);
  started->changed.wait(lock, [&] { return started->finished_blocks == work->block_count(); });
}

}  // namespace pl::sim
