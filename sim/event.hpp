// SPDX-License-Identifier: Apache-2.0
// Events. Each cuEventRecord makes a new `recording`; waits and queries refer to the recording that was the latest when the
// call was made, so a later record does not disturb earlier waits. Any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "sim/stream.hpp"

namespace pl::sim {

class recording {
 public:
  // Called by the stream when it reaches the event.
  void pass(std::uint64_t now_ns) {
    const std::lock_guard lock(mutex_);
    passed_ns_ = now_ns;
    changed_.notify_all();
  }
  bool has_passed() { return passed_ns() != 0; }
  std::uint64_t passed_ns() {
    const std::lock_guard lock(mutex_);
    return passed_ns_;
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return passed_ns_ != 0; });
  }
  // For streams: another context's stream may never reach the event, and this context must still be able to end.
  void wait_unless(const std::atomic<bool>& stopped) {
    std::unique_lock lock(mutex_);
    while (passed_ns_ == 0 && !stopped) changed_.wait_for(lock, std::chrono::milliseconds(2));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t passed_ns_ = 0;  // CLOCK_MONOTONIC; 0: not yet
};

struct event : std::enable_shared_from_this<event> {
  context_t owner = nullptr;
  unsigned flags = 0;
  std::mutex mutex;
  std::shared_ptr<recording> latest;  // null: never recorded, which counts as passed

  // Under graph_mutex(): the capture that the event was last recorded in (null: in none), and where.
  std::shared_ptr<capture> in_capture;
  std::vector<graph_node_t> tails;

  // The recording that the record made now will pass.
  std::shared_ptr<recording> make_latest() {
    const std::lock_guard lock(mutex);
    return latest = std::make_shared<recording>();
  }
  std::shared_ptr<recording> current() {
    const std::lock_guard lock(mutex);
    return latest;
  }
};

std::shared_ptr<event> find_event(event_t handle);

}  // namespace pl::sim
