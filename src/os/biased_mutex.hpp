// SPDX-License-Identifier: Apache-2.0
// A mutex that costs one thread nothing while no other thread uses it: no locked instruction, a store and two loads.
//
// The first thread that locks it owns the bias. It says that it is inside by a plain store and reads whether the bias was
// revoked. The first other thread revokes it for ever: it says so, has every thread of the process pass a memory barrier
// (process_barrier.hpp), and waits until the owner is outside. From then on, as where the kernel has no such barrier, it is
// a std::mutex, for which a thread looks some microseconds before it sleeps: it is held for less, and to sleep and be woken
// takes longer. is_wanted() lets a thread that locks it again and again stand back for those who wait.
//
// Owns: nothing. Threads: any; not recursive. Errors: none.
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
  // Whether a thread waits for it. For who has just unlocked it and would be the first to have it again.
  bool is_wanted() const noexcept { return waiting_.load(std::memory_order_relaxed) != 0; }

 private:
  // Different for two threads that live. The next thread at an ended owner's address goes on as the owner.
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
