// SPDX-License-Identifier: Apache-2.0
#include "messaging/progress_thread.hpp"

#include <poll.h>
#include <sched.h>

#include <mutex>

#include "arch/mmio.hpp"
#include "messaging/messenger_core.hpp"
#include "os/blocked_signals.hpp"

namespace pl::messaging {
namespace {

// Rounds without anything to do before it sleeps: some microseconds, in which the answer of a quick peer comes without the
// cost of a system call at both ends.
constexpr int kIdleRounds = 200;

}  // namespace

status progress_thread::start() {
  const std::lock_guard lock(core_.mutex_);
  auto opened = core_.open_descriptor();
  if (!opened) return std::move(opened).error();
  descriptor_ = *opened;
  if (auto armed = core_.arm_owner(); !armed && armed.code() != EBUSY) return armed;
  const blocked_signals during_start;
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
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
  int idle = 0;
  while (!stop.stop_requested()) {
    if (progress_once()) {
      idle = 0;
      continue;
    }
    if (++idle < kIdleRounds) {
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
    idle = 0;
  }
}

bool progress_thread::progress_once() {
  const std::lock_guard lock(core_.mutex_);
  return core_.progress();
}

}  // namespace pl::messaging
