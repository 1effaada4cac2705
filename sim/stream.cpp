// SPDX-License-Identifier: Apache-2.0
#include "sim/stream.hpp"

#include <chrono>
#include <new>
#include <system_error>
#include <thread>

#include "os/blocked_signals.hpp"

namespace pl::sim {
namespace {

// Long enough for a loop of submit and synchronise to keep its worker, short enough that idle streams soon cost nothing.
constexpr std::chrono::milliseconds kWorkerLinger{100};

}  // namespace

void start_thread(std::function<void()> body) { pl::start_thread(std::move(body)).detach(); }

stream::ticket stream::submit(std::vector<dependency> after, action work, bool always) {
  const std::lock_guard lock(mutex_);
  queue_.push_back({std::move(after), std::move(work), always});
  if (!has_worker_) start_worker_locked();
  changed_.notify_all();
  return ++submitted_;
}

bool stream::try_claim(ticket& claimed) {
  const std::lock_guard lock(mutex_);
  if (is_running_ || !queue_.empty()) return false;
  is_running_ = true;
  claimed = ++submitted_;
  return true;
}

void stream::run_claimed(const action& work) {
  random_delay();
  if (!fate_->ended()) {
    const writer_scope writer(stores_);
    work();
    order_stores();  // the caller returns to the application
  }
  const std::lock_guard lock(mutex_);
  is_running_ = false;
  ++completed_;
  changed_.notify_all();
}

void stream::wait(ticket position) {
  {
    std::unique_lock lock(mutex_);
    run_without_worker(lock);
    changed_.wait(lock, [&] { return completed_ >= position; });
  }
  if (stores_are_delayed()) stores_->drain();
}

stream::ticket stream::submitted() {
  const std::lock_guard lock(mutex_);
  return submitted_;
}

bool stream::is_idle() {
  const std::lock_guard lock(mutex_);
  if (completed_ != submitted_) return false;
  if (stores_are_delayed()) stores_->drain();
  return true;
}

bool stream::has_completed(ticket position) {
  const std::lock_guard lock(mutex_);
  return completed_ >= position;
}

bool stream::has_room(std::uint64_t depth) {
  const std::lock_guard lock(mutex_);
  return submitted_ - completed_ < depth;
}

void stream::wait_for_room(std::uint64_t depth) {
  std::unique_lock lock(mutex_);
  run_without_worker(lock);
  changed_.wait(lock, [&] { return submitted_ - completed_ < depth; });
}

// Without a thread the GPU has failed: the next calls tell, and whoever waits for the stream carries out what is in it.
void stream::start_worker_locked() {
  try {
    start_thread([self = shared_from_this()] { self->work_loop(); });
    has_worker_ = true;
  } catch (const std::system_error&) { fate_->fail(code::out_of_memory); }
}

// Leaves when the queue stays empty for a while; the next submission starts a new worker. So a destroyed stream finishes
// its work and is then gone, and idle streams cost no thread.
void stream::work_loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!changed_.wait_for(lock, kWorkerLinger, [&] { return !queue_.empty(); })) {
      has_worker_ = false;
      return;
    }
    if (is_running_) changed_.wait(lock);  // a claiming thread got in first
    else run_first(lock);
  }
}

void stream::run_without_worker(std::unique_lock<std::mutex>& lock) {
  while (!has_worker_ && !is_running_ && !queue_.empty()) run_first(lock);
}

void stream::run_first(std::unique_lock<std::mutex>& lock) {
  is_running_ = true;
  {
    operation next = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    execute(next);
  }  // what the operation held is released before its completion shows
  lock.lock();
  is_running_ = false;
  ++completed_;
  changed_.notify_all();
}

void stream::execute(operation& next) {
  for (const auto& earlier : next.after) earlier.target_stream->wait(earlier.position);
  random_delay();
  const writer_scope writer(stores_);
  try {
    if (next.always || !fate_->ended()) next.work();
  } catch (const std::bad_alloc&) { fate_->fail(code::out_of_memory); }
}

}  // namespace pl::sim
