// SPDX-License-Identifier: Apache-2.0
// Wakes a sleeping proxy thread, of this process or of a peer, when a stream reaches a point. A helper thread blocks in the
// driver until the GPU's interrupt; it makes the CUDA calls that the proxy thread may not make.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "copy/gpu_context.hpp"
#include "triggered/thread_wakeup.hpp"

namespace pl::triggered {

class event_wakeup {
 public:
  // The helper thread starts with the first arm().
  explicit event_wakeup(const copy::gpu_context& context) : context_(context) {}
  // Waits until streams have reached every armed event.
  ~event_wakeup();
  event_wakeup(const event_wakeup&) = delete;
  event_wakeup& operator=(const event_wakeup&) = delete;

  // Wakes `target` once the stream has finished the work that is queued on it now. Events are handled in the order in which
  // they were armed: one stuck stream delays later wake-ups, which then wait for the proxy thread's own rounds. Any thread,
  // with the context current.
  status arm(cu::stream_t stream, std::shared_ptr<thread_wakeup> target);

 private:
  void run();
  copy::gpu_context context_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_stopping_ = false;
  std::vector<cu::event_t> free_;
  std::deque<std::pair<cu::event_t, std::shared_ptr<thread_wakeup>>> armed_;
  std::thread thread_;
};

}  // namespace pl::triggered
