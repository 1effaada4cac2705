// SPDX-License-Identifier: Apache-2.0
#include "messaging/progress_thread.hpp"

#include <poll.h>
#include <sched.h>

#include <mutex>

#include "arch/mmio.hpp"
#include "base/clock.hpp"
#include "messaging/messenger_core.hpp"
#include "messaging/spin_time.hpp"
#include "os/blocked_signals.hpp"
#include "os/cpu_list.hpp"

namespace pl::messaging {
namespace {

constexpr std::size_t kFewCpus = 2;  // with so few CPUs, a polling thread takes CPU time from working ones

// While other threads want the messenger's lock: as long as one of them may need to wake up.
constexpr int kRoundsForOthers = 1000;

}  // namespace

status progress_thread::start() {
  const std::lock_guard lock(core_.mutex_);
  auto opened = core_.open_descriptor();
  if (!opened) return std::move(opened).error();
  descriptor_ = *opened;
  if (auto armed = core_.arm_owner(); !armed && armed.code() != EBUSY) return armed;
  auto started =
      try_start_thread<std::jthread>("makes progress of messages", [this](const std::stop_token& stop) { run(stop); });
  if (!started) return started.error();
  thread_ = *std::move(started);
  return {};
}

progress_thread::~progress_thread() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  {
    const std::lock_guard lock(core_.mutex_);
    core_.context_.wake.wake_owner();
  }
  thread_.join();
}

void progress_thread::run(const std::stop_token& stop) {
  spin_time spin(cpus_of_this_thread().size() > kFewCpus);
  std::uint64_t idle_since_ns = monotonic_ns();
  while (!stop.stop_requested()) {
    const bool did_something = progress_once();
    const std::uint64_t now_ns = monotonic_ns();
    if (did_something) {
      idle_since_ns = now_ns;
      continue;
    }
    if (now_ns - idle_since_ns < spin.ns()) {
      arch::relax();
      continue;
    }
    bool may_sleep = false;
    {
      const std::lock_guard lock(core_.mutex_);
      may_sleep = core_.arm_owner().ok() && !stop.stop_requested();
    }
    if (!may_sleep) {
      sched_yield();
      continue;
    }
    pollfd waited{descriptor_, POLLIN, 0};
    poll(&waited, 1, -1);
    idle_since_ns = monotonic_ns();
    spin.slept(idle_since_ns - now_ns);
  }
}

bool progress_thread::progress_once() {
  // A thread that unlocks a mutex and locks it again at once starves the waiting threads.
  for (int i = 0; i < kRoundsForOthers && core_.mutex_.is_wanted(); ++i) arch::relax();
  const std::lock_guard lock(core_.mutex_);
  return core_.progress();
}

}  // namespace pl::messaging
