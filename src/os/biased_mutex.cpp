// SPDX-License-Identifier: Apache-2.0
#include "os/biased_mutex.hpp"

#include <sched.h>

namespace pl {

void biased_mutex::lock_shared_by_threads() noexcept {
  mutex_.lock();
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
