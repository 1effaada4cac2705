// SPDX-License-Identifier: Apache-2.0
// A mutex that costs a thread almost nothing while no other thread uses it: no locked instruction, just a store and two
// loads.
//
// The first thread that locks it owns the bias. It announces that it is inside by a plain store, and then reads whether
// the bias was revoked. The first other thread revokes the bias for ever: it sets the flag, makes every thread of the
// process execute a memory barrier (process_barrier.hpp), and waits until the owner is outside. From then on, or if the
// kernel has no such barrier, it is a std::mutex, for which a thread spins several microseconds before it sleeps,
// because it is held for less than sleeping and waking takes. is_wanted() lets a thread that locks it repeatedly give
// way to those who wait.
//
// Owns nothing. Thread-safe; not recursive. No errors.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "os/process_barrier.hpp"

namespace pl {

class biased_mutex {
 public:
  biased_mutex() : is_revoked_(!process_barrier::join()) {}

  void lock() noexcept {
    if (owner_.load(std::memory_order_relaxed) == this_thread()) {
      is_inside_.store(true, std::memory_order_relaxed);
      process_barrier::light();
      if (!is_revoked_.load(std::memory_order_relaxed)) [[likely]]
        return;
      is_inside_.store(false, std::memory_order_release);
    }
    lock_shared_by_threads();
  }
  void unlock() noexcept {
    if (owner_.load(std::memory_order_relaxed) == this_thread() && is_inside_.load(std::memory_order_relaxed))
      is_inside_.store(false, std::memory_order_release);
    else mutex_.unlock();
  }
  // Whether a thread is waiting. For a thread that has just unlocked it and would be the first to lock it again.
  bool is_wanted() const noexcept { return waiting_.load(std::memory_order_relaxed) != 0; }

 private:
  // Different for any two living threads. The next thread at the address of an ended owner continues as the owner.
  static std::uintptr_t this_thread() noexcept { return reinterpret_cast<std::uintptr_t>(__builtin_thread_pointer()); }
  void lock_shared_by_threads() noexcept;
  void lock_mutex() noexcept;

  std::atomic<std::uintptr_t> owner_{0};
  std::atomic<bool> is_inside_{false};
  std::atomic<bool> is_revoked_;
  std::atomic<int> waiting_{0};
  std::mutex mutex_;
};

}  // namespace pl
