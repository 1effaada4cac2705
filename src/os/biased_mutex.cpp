// SPDX-License-Identifier: Apache-2.0
#include "os/biased_mutex.hpp"

#include <sched.h>

#include "arch/mmio.hpp"

namespace pl {
namespace {

constexpr int kTries = 100;  // several microseconds

}  // namespace

void biased_mutex::lock_mutex() noexcept {
  if (mutex_.try_lock()) return;
  waiting_.fetch_add(1, std::memory_order_relaxed);
  bool is_mine = false;
  for (int i = 0; i < kTries && !is_mine; ++i) {
    arch::relax();
    is_mine = mutex_.try_lock();
  }
  if (!is_mine) mutex_.lock();
  waiting_.fetch_sub(1, std::memory_order_relaxed);
}

void biased_mutex::lock_shared_by_threads() noexcept {
  lock_mutex();
  if (is_revoked_.load(std::memory_order_relaxed)) return;
  if (owner_.load(std::memory_order_relaxed) == 0) {
    is_inside_.store(true, std::memory_order_relaxed);
    owner_.store(this_thread(), std::memory_order_relaxed);
    mutex_.unlock();
    return;
  }
  is_revoked_.store(true, std::memory_order_relaxed);
  process_barrier::heavy();
  while (is_inside_.load(std::memory_order_acquire)) sched_yield();
}

}  // namespace pl
