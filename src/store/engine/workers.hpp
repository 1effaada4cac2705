// SPDX-License-Identifier: Apache-2.0
// A few threads for tasks that may wait for the disk, so that callers do not.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "os/blocked_signals.hpp"

namespace pl::store {

class workers {
 public:
  // Throws if a thread cannot be created (ulimit -v); those created before have ended then.
  explicit workers(std::size_t count) {
    try {
      for (std::size_t i = 0; i < count; ++i) threads_.push_back(start_thread([this] { run(); }));
    } catch (...) {
      stop();
      throw;
    }
  }
  ~workers() { stop(); }
  // Returns false, and does not run the task, after stop().
  bool run_later(std::function<void()> task) {
    {
      std::lock_guard lock(mutex_);
      if (stopping_) return false;
      queue_.push_back(std::move(task));
    }
    wake_.notify_one();
    return true;
  }
  // Finishes everything queued.
  void stop() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

 private:
  void run() {
    for (;;) {
      std::function<void()> next;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
        if (queue_.empty()) return;
        next = std::move(queue_.front());
        queue_.pop_front();
      }
      next();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace pl::store
