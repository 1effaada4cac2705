// SPDX-License-Identifier: Apache-2.0
// A lock for sections of a few dozen instructions on the path of a copy: half the cost of an uncontended std::mutex (one
// atomic operation instead of two). Never held over a system call, an allocation or a call into a driver.
#pragma once

#include <sched.h>

#include <atomic>

#include "arch/mmio.hpp"

namespace pl::copy {

class spin_lock {
 public:
  void lock() noexcept {
    while (is_taken_.exchange(true, std::memory_order_acquire)) wait();
  }
  void unlock() noexcept { is_taken_.store(false, std::memory_order_release); }

 private:
  void wait() const noexcept {
    constexpr int kTimeout = 100;  // several microseconds: if it takes longer, the holder has most likely lost its CPU
    for (int i = 0; is_taken_.load(std::memory_order_relaxed); ++i) {
      if (i < kTimeout) arch::relax();
      else sched_yield();
    }
  }
  std::atomic<bool> is_taken_{false};
};

}  // namespace pl::copy
