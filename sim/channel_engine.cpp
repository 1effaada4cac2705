// SPDX-License-Identifier: Apache-2.0
// The thread that executes all channels of a resource manager. It starts with the first channel and ends with the last. A
// store to a doorbell cannot wake it, so it looks at the doorbells: without a pause while there is work, then less often.
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <thread>

#include "base/clock.hpp"
#include "os/blocked_signals.hpp"
#include "sim/resource_calls.hpp"

namespace pl::sim {
namespace {

constexpr std::uint64_t kSliceBytes = 1u << 20;  // so long may a call wait for the lock
// Yielding lets whoever waits for the engine run where all CPUs are busy; after this a sleep costs less than looking on.
constexpr std::uint64_t kYieldNs = 20'000;
constexpr std::uint64_t kShortSleepNs = 5'000, kSleepNs = 50'000;
constexpr std::uint64_t kLongIdleNs = 50'000'000, kLongSleepNs = 1'000'000;  // a process at rest costs little

class idle_pause {
 public:
  void after(bool has_worked) {
    const std::uint64_t now_ns = monotonic_ns();
    if (has_worked || last_work_ns_ == 0) last_work_ns_ = now_ns;
    const std::uint64_t idle_ns = now_ns - last_work_ns_;
    if (idle_ns < kYieldNs) {
      if (!has_worked) sched_yield();
      return;
    }
    const std::uint64_t sleep_ns = idle_ns > kLongIdleNs ? kLongSleepNs : std::clamp(idle_ns / 4, kShortSleepNs, kSleepNs);
    const timespec pause{0, static_cast<long>(sleep_ns)};
    nanosleep(&pause, nullptr);
  }

 private:
  std::uint64_t last_work_ns_ = 0;
};

}  // namespace

// False: no thread can be started, so there is no channel either.
bool resource_manager::add_channel(const object& made) {
  channels_.push_back({made.board, made.channel});
  if (has_engine_) return true;
  auto started = try_start_thread("plays the copy engines", [self = shared_from_this()] { self->run_engine(); });
  if (started) started->detach();
  else channels_.pop_back();
  return has_engine_ = started.ok();
}

// The caller has the lock, so the engine is between two slices: nothing of the channel touches memory any more.
void resource_manager::drop_channel(const copy_channel* channel) {
  const auto found =
      std::find_if(channels_.begin(), channels_.end(), [&](const auto& one) { return one.channel.get() == channel; });
  if (found == channels_.end()) return;
  pipelined_ += found->channel->pipelined_copies();
  channels_.erase(found);
}

// To all that asked for this engine's, whosever channel it was. The lock is held.
void resource_manager::interrupt(unsigned board, std::uint32_t engine) {
  constexpr std::uint32_t kNotifierBits = 0xffff;
  const std::uint32_t notifier = rm::kNotifierCopy0 + (engine - rm::kEngineCopy0);
  for (auto& [root, owner] : clients_)
    for (const auto& [handle, one] : owner.objects) {
      if (one.object_class != rm::class_os_event || one.board != board) continue;
      if ((one.event.index & kNotifierBits) != notifier || (one.event.index & rm::kEventOfEngine) == 0) continue;
      const auto subdevice = owner.objects.find(one.parent);
      if (subdevice == owner.objects.end() || subdevice->second.notifiers.count(notifier) == 0) continue;
      const auto event = owner.os_events.find(static_cast<std::uint32_t>(one.event.fd));
      const auto opened = event != owner.os_events.end() ? nodes_.find(event->second) : nodes_.end();
      if (opened == nodes_.end()) continue;
      opened->second.has_data |= (one.event.index & rm::kEventWithoutData) == 0;
      (void)eventfd_write(opened->first, 1);
    }
}

void resource_manager::run_engine() {
  prctl(PR_SET_NAME, "sim-copy-engine");
  prctl(PR_SET_TIMERSLACK, 1);
  idle_pause pause;
  for (;;) {
    bool has_worked = false;
    {
      const std::lock_guard hold(mutex_);
      if (is_over_ || channels_.empty()) {
        has_engine_ = false;
        engine_ended_.notify_all();
        return;
      }
      if (!options_.is_deaf) listen_to_doorbells();
      for (const auto& one : channels_) has_worked |= one.channel->step(kSliceBytes);
    }
    while (callers_.load(std::memory_order_relaxed) > 0) sched_yield();
    pause.after(has_worked);
  }
}

// Two channels that ring at the same moment leave one token in the page, which is memory here and no register. Therefore
// any ring makes all channels of the board look at their positions.
void resource_manager::listen_to_doorbells() {
  for (unsigned board = 0; board < doorbells_.size(); ++board) {
    if (doorbells_[board] == nullptr) continue;
    auto* const word = reinterpret_cast<std::uint32_t*>(doorbells_[board]->bytes() + rm::kDoorbellOffset);
    if (__atomic_load_n(word, __ATOMIC_RELAXED) == 0 || __atomic_exchange_n(word, 0, __ATOMIC_ACQ_REL) == 0) continue;
    for (const auto& one : channels_)
      if (one.board == board) one.channel->fetch();
  }
}

void resource_manager::lose_gpus(bool is_lost) {
  const call_scope hold(*this);
  is_lost_ = is_lost;
  while (is_lost && !channels_.empty()) drop_channel(channels_.front().channel.get());
}

void resource_manager::shut_down() {
  std::unique_lock hold(mutex_);
  is_over_ = true;
  engine_ended_.wait(hold, [this] { return !has_engine_; });
  while (!clients_.empty()) end_client(clients_.begin()->first);
}

std::uint64_t resource_manager::pipelined_copies() {
  const call_scope hold(*this);
  std::uint64_t count = pipelined_;
  for (const auto& one : channels_) count += one.channel->pipelined_copies();
  return count;
}

bool resource_manager::is_engine_running() {
  const call_scope hold(*this);
  return has_engine_;
}

}  // namespace pl::sim
