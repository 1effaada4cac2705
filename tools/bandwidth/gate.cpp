// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/gate.hpp"

#include <chrono>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "os/blocked_signals.hpp"

namespace pl::bandwidth {

result<std::unique_ptr<gate>> gate::make(gpu_set& gpus, int owner) {
  if (auto ready = gpus.make_current(owner); !ready) return ready.error();
  void* word = nullptr;
  const unsigned flags = cu::host_alloc_flag::portable | cu::host_alloc_flag::device_map;
  if (auto got = gpus.check(gpus.cuda().cuMemHostAlloc(&word, 4096, flags), "pinned memory for the start gate"); !got)
    return got.error();
  std::unique_ptr<gate> made(new gate(gpus, owner, static_cast<std::uint32_t*>(word)));
  auto started = try_start_thread("watches the start gate", [self = made.get()] { self->watch(); });
  if (!started) return started.error();
  made->watchdog_ = *std::move(started);
  return made;
}

gate::gate(gpu_set& gpus, int owner, std::uint32_t* word) : gpus_(gpus), owner_(owner), word_(word) {
  __atomic_store_n(word_, 0u, __ATOMIC_RELEASE);
}

gate::~gate() {
  {
    const std::lock_guard lock(mutex_);
    open_locked();
    ending_ = true;
  }
  changed_.notify_all();
  if (watchdog_.joinable()) watchdog_.join();
  if (gpus_.make_current(owner_)) gpus_.cuda().cuMemFreeHost(word_);
}

void gate::close(unsigned timeout_s) {
  {
    const std::lock_guard lock(mutex_);
    ++round_;
    forced_ = false;
    deadline_ns_ = monotonic_ns() + std::uint64_t{timeout_s} * 1'000'000'000u;
  }
  changed_.notify_all();
}

status gate::hold(int gpu, cu::stream_t stream) {
  const auto& cuda = gpus_.cuda();
  if (cuda.cuStreamWaitValue32_v2 == nullptr)
    return failure{ENOTSUP,
                   "this driver has no cuStreamWaitValue32: transfers cannot be started together; install 11.7 or later"};
  cu::device_ptr address = 0;
  if (auto got = gpus_.check(cuda.cuMemHostGetDevicePointer_v2(&address, word_, 0), format("GPU %d: the start gate", gpu));
      !got)
    return got;
  return gpus_.check(cuda.cuStreamWaitValue32_v2(stream, address, round_, cu::wait_value::geq),
                     format("GPU %d: waiting for the start gate", gpu));
}

void gate::everything_is_enqueued() {
  const std::lock_guard lock(mutex_);
  deadline_ns_ = 0;
}

void gate::open() {
  const std::lock_guard lock(mutex_);
  open_locked();
}

void gate::open_locked() {
  deadline_ns_ = 0;
  __atomic_store_n(word_, round_, __ATOMIC_RELEASE);
}

bool gate::was_forced() const {
  const std::lock_guard lock(mutex_);
  return forced_;
}

void gate::watch() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    if (deadline_ns_ == 0) {
      changed_.wait(lock);
      continue;
    }
    const std::uint64_t now_ns = monotonic_ns();
    if (now_ns < deadline_ns_) {
      changed_.wait_for(lock, std::chrono::nanoseconds(deadline_ns_ - now_ns));
      continue;
    }
    forced_ = true;
    open_locked();
  }
}

}  // namespace pl::bandwidth
