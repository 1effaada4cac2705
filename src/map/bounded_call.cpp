// SPDX-License-Identifier: Apache-2.0
#include "map/bounded_call.hpp"

#include <pthread.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <optional>

#include "base/text.hpp"
#include "cuda/pointer.hpp"
#include "os/blocked_signals.hpp"

namespace pl {

struct bounded_call::state {
  const cu::driver_table* cuda = nullptr;
  std::function<status()> work;
  std::mutex mutex;
  std::condition_variable ended;
  std::optional<status> outcome;
};

namespace {

status run(bounded_call::state& shared) {
  try {
    const cu::relaxed_capture capture(*shared.cuda);
    return shared.work();
  } catch (const std::bad_alloc&) { return failure{ENOMEM, "memory is exhausted"}; }
}

void* thread_main(void* argument) {
  const std::unique_ptr<std::shared_ptr<bounded_call::state>> owner(
      static_cast<std::shared_ptr<bounded_call::state>*>(argument));
  bounded_call::state& shared = **owner;
  status outcome = run(shared);
  shared.work = nullptr;  // what it owns is destroyed before anybody is notified
  {
    const std::lock_guard lock(shared.mutex);
    shared.outcome = std::move(outcome);
  }
  shared.ended.notify_all();
  return nullptr;
}

}  // namespace

result<std::shared_ptr<bounded_call>> bounded_call::start(const cu::driver_table& cuda, std::function<status()> work) {
  auto shared = std::make_shared<state>();
  shared->cuda = &cuda;
  shared->work = std::move(work);
  auto made = std::make_shared<bounded_call>(shared);
  auto argument = std::make_unique<std::shared_ptr<state>>(std::move(shared));
  pthread_attr_t detached;
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  const int code = [&] {
    const blocked_signals blocked;
    return pthread_create(&thread, &detached, thread_main, argument.get());
  }();
  pthread_attr_destroy(&detached);
  if (code != 0) return failure{EAGAIN, "a thread cannot be started: raise the limit of processes (ulimit -u)"};
  argument.release();
  return made;
}

status bounded_call::wait() const {
  std::unique_lock lock(shared_->mutex);
  const auto limit = std::chrono::milliseconds(kBoundedCallLimitMs);
  if (shared_->ended.wait_for(lock, limit, [this] { return shared_->outcome.has_value(); })) return *shared_->outcome;
  return failure{ETIMEDOUT, format("CUDA did not answer within %d ms: a running kernel delays it", kBoundedCallLimitMs)};
}

bool bounded_call::has_ended() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->outcome.has_value();
}

status call_bounded(const cu::driver_table& cuda, std::function<status()> work) {
  auto call = bounded_call::start(cuda, std::move(work));
  if (!call) return call.error();
  return (*call)->wait();
}

}  // namespace pl
