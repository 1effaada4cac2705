// SPDX-License-Identifier: Apache-2.0
#include "triggered/event_wakeup.hpp"

#include <pthread.h>

#include <utility>

#include "os/blocked_signals.hpp"

namespace pl::triggered {

event_wakeup::~event_wakeup() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (free_.empty() || !context_.is_alive()) return;
  if (auto use = copy::context_use::enter(context_))
    for (auto event : free_) static_cast<void>(context_.cuda->cuEventDestroy_v2(event));
}

status event_wakeup::arm(cu::stream_t stream, std::shared_ptr<thread_wakeup> target) {
  const auto& cuda = *context_.cuda;
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) {
    auto started = try_start_thread("waits for streams' events", [this] { run(); });
    if (!started) return started.error();
    thread_ = *std::move(started);
  }
  if (free_.empty()) {
    cu::event_t made = nullptr;
    const auto rc = cuda.cuEventCreate(&made, cu::event_flag::blocking_sync | cu::event_flag::disable_timing);
    if (rc != cu::error_code::success) return cu::make_error(cuda, rc, "an event for the sleeping proxy thread");
    free_.push_back(made);
  }
  if (const auto rc = cuda.cuEventRecord(free_.back(), stream); rc != cu::error_code::success)
    return cu::make_error(cuda, rc, "recording an event for the sleeping proxy thread");
  armed_.emplace_back(free_.back(), std::move(target));
  free_.pop_back();
  changed_.notify_all();
  return {};
}

void event_wakeup::run() {
  pthread_setname_np(pthread_self(), "peerlane-wakeup");
  auto use = copy::context_use::enter(context_);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return is_stopping_ || !armed_.empty(); });
    if (armed_.empty()) return;
    const auto [event, target] = std::move(armed_.front());
    armed_.pop_front();
    lock.unlock();
    if (use) static_cast<void>(context_.cuda->cuEventSynchronize(event));
    target->ring();
    lock.lock();
    free_.push_back(event);
  }
}

}  // namespace pl::triggered
