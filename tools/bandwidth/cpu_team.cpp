// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/cpu_team.hpp"

#include <sched.h>

#include "arch/mmio.hpp"
#include "base/clock.hpp"
#include "os/blocked_signals.hpp"

namespace pl::bandwidth {
namespace {

constexpr unsigned kSpins = 2000;  // then the CPU is yielded between polls

}  // namespace

cpu_team::~cpu_team() {
  stop();
  (void)join();
}

void cpu_team::add(cpu_copier& copier, std::uint64_t copies, unsigned warm_up) {
  auto& fresh = members_.emplace_back();
  fresh.copier = &copier;
  fresh.copies = copies;
  fresh.warm_up = warm_up;
  auto started = try_start_thread("copies by CPU", [this, &fresh] { work(fresh); });
  if (started) {
    fresh.thread = *std::move(started);
    return;
  }
  fresh.outcome = started.error();
  failed_.store(true, std::memory_order_release);
  ready_.fetch_add(1, std::memory_order_acq_rel);
  ended_.fetch_add(1, std::memory_order_acq_rel);
}

void cpu_team::work(member& self) {
  self.outcome = self.copier->enter();
  if (self.outcome) self.outcome = self.copier->copy(self.warm_up, stop_);
  if (!self.outcome) failed_.store(true, std::memory_order_release);
  ready_.fetch_add(1, std::memory_order_acq_rel);
  for (unsigned spins = 0; self.outcome && !started_.load(std::memory_order_acquire); ++spins) {
    if (stop_.load(std::memory_order_relaxed)) break;
    if (spins < kSpins) arch::relax();
    else sched_yield();
  }
  if (self.outcome) {
    self.start_ns = monotonic_ns();
    self.outcome = self.copier->copy(self.copies, stop_);
    self.end_ns = monotonic_ns();
  }
  ended_.fetch_add(1, std::memory_order_acq_rel);
}

void cpu_team::stop() { stop_.store(true, std::memory_order_release); }

status cpu_team::join() {
  status first;
  for (auto& one : members_) {
    if (one.thread.joinable()) one.thread.join();
    // A copier that was stopped is not the cause.
    if (!one.outcome && (first || first.code() == ECANCELED)) first = one.outcome;
  }
  return first;
}

}  // namespace pl::bandwidth
