// SPDX-License-Identifier: Apache-2.0
// A memory barrier between processes in which the rare side pays for both: the frequent side only keeps the compiler
// from reordering, and the rare side makes the kernel run a barrier on every CPU that runs a process which has joined
// (membarrier, Linux 4.16).
//
// With light() between a store and a load on one side, and heavy() between a store and a load on the other, at least
// one of the two loads sees the other side's store. If the kernel refuses to join, light() is a full fence, and heavy()
// is not needed.
//
// Owns nothing. Thread-safe. heavy() returns whether the barrier reached the processes that joined.
#pragma once

#include <atomic>

namespace pl {

class process_barrier {
 public:
  // Call before the first light(). Returns false if this kernel, or a filter of system calls, does not allow it.
  static bool join() noexcept;
  static bool has_joined() noexcept { return has_joined_.load(std::memory_order_relaxed); }
  static void light() noexcept {
    if (has_joined()) std::atomic_signal_fence(std::memory_order_seq_cst);
    else std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  static bool heavy() noexcept;

 private:
  static std::atomic<bool> has_joined_;
};

}  // namespace pl
