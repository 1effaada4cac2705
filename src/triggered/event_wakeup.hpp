// SPDX-License-Identifier: Apache-2.0
// Tells a sleeping service thread, of this process or of a peer, that a stream has come somewhere: a thread that blocks in
// the driver until the GPU's interrupt. It makes the CUDA calls that the service thread may not make.
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

namespace pl::stream {

class event_bell {
 public:
  // The helper thread starts with the first arm().
  explicit event_bell(const copy::gpu_context& context) : context_(context) {}
  // Waits until streams have come to what was armed.
  ~event_bell();
  event_bell(const event_bell&) = delete;
  event_bell& operator=(const event_bell&) = delete;

  // `whom` is rung once the stream has come past what is queued on it now. Events are heard in the order in which they were
  // armed: one stuck stream delays the bells of others, which then wait for the service thread's own rounds. Any thread,
  // with the context current.
  status arm(cu::stream_t stream, std::shared_ptr<wake_bell> target);

 private:
  void run();
  copy::gpu_context context_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_stopping_ = false;
  std::vector<cu::event_t> free_;
  std::deque<std::pair<cu::event_t, std::shared_ptr<wake_bell>>> armed_;
  std::thread thread_;
};

}  // namespace pl::stream
