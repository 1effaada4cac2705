// SPDX-License-Identifier: Apache-2.0
// A device's multiprocessors: up to kMultiprocessors threads, started when there are blocks, gone when idle for a while.
#include <chrono>
#include <deque>

#include "launch.hpp"

namespace pl::sim {
namespace {

constexpr std::chrono::milliseconds kLinger{100};

struct executor {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<launch>> queue;  // launches with blocks not yet started, in order of arrival
  int threads = 0;
  int idle = 0;
};

executor& executor_of(int ordinal) {
  static auto* const all = new std::vector<executor>(devices().size());
  return (*all)[static_cast<std::size_t>(ordinal)];
}

void work_loop(executor& self) {
  std::unique_lock lock(self.mutex);
  for (;;) {
    ++self.idle;
    const bool has_work = self.changed.wait_for(lock, kLinger, [&] { return !self.queue.empty(); });
    --self.idle;
    if (!has_work) {
      --self.threads;
      return;
    }
    auto work = self.queue.front();
    const std::uint64_t index = work->next_block++;
    if (work->next_block == work->block_count()) self.queue.pop_front();
    lock.unlock();
    run_block(*work, index);
    {
      const std::lock_guard done(work->mutex);
      if (++work->finished_blocks == work->block_count()) work->changed.notify_all();
    }
    work = nullptr;
    lock.lock();
  }
}

}  // namespace

void execute_launch(const std::shared_ptr<launch>& work) {
  executor& on = executor_of(work->device_ordinal);
  {
    const std::lock_guard lock(on.mutex);
    on.queue.push_back(work);
    std::uint64_t wanted = work->block_count();
    for (int i = on.idle; wanted > static_cast<std::uint64_t>(i) && on.threads < kMultiprocessors; ++i, ++on.threads)
      start_thread([&on] { work_loop(on); });
    on.changed.notify_all();
  }
  std::unique_lock lock(work->mutex);
  work->changed.wait(lock, [&] { return work->finished_blocks == work->block_count(); });
}

}  // namespace pl::sim
