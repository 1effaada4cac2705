// SPDX-License-Identifier: Apache-2.0
// A memory barrier between processes whose rare side pays for both: the frequent side only keeps the compiler from
// reordering, and the rare side has the kernel run a barrier on every CPU where a process that joined runs (membarrier,
// Linux 4.16).
//
// With light() between a store and a load here, and heavy() between a store and a load there, at least one of the two loads
// sees the other side's store. Where the kernel refuses to join, light() is a full fence; then heavy() is not needed.
//
// Owns: nothing. Threads: any. Errors: heavy() answers whether the barrier reached the processes that joined.
#pragma once

#include <atomic>

namespace pl {

class process_barrier {
 public:
  // Before the first light(). False: this kernel, or a filter of system calls, does not allow it.
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
