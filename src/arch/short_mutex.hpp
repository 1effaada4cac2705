// SPDX-License-Identifier: Apache-2.0
// A mutex for what takes a microsecond: who finds it locked tries again for a few microseconds before it sleeps. To sleep
// and be woken costs 5 us, in a virtual machine 20 to 50, in which the owner would have been done many times over.
#pragma once

#include <mutex>

#include "arch/mmio.hpp"

namespace pl {

// As a std::mutex, also for std::condition_variable, whose waits lock it without that.
class short_mutex : public std::mutex {
 public:
  void lock() {
    if (try_lock()) return;
    for (int tries = 0; tries < kTries; ++tries) {
      for (int i = 0; i < kPausesPerTry; ++i) arch::relax();
      if (try_lock()) return;
    }
    std::mutex::lock();
  }

 private:
  // A pause takes 40 to 140 cycles: 3 to 10 us in all. Each try takes the cache line from the owner, so there are few.
  static constexpr int kTries = 20, kPausesPerTry = 8;
};

}  // namespace pl
