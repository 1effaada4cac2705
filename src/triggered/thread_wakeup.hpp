// SPDX-License-Identifier: Apache-2.0
// Wakes a proxy thread, from its own process or another process of the node: a futex in shared memory, and a word that says
// whether a wake-up is needed.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "triggered/shared_memory.hpp"

namespace pl::triggered {

class thread_wakeup {
 public:
  // Never fails: where no memory can be shared, own_name().bytes is 0 and only this process can ring.
  static std::shared_ptr<thread_wakeup> make();
  static result<std::shared_ptr<thread_wakeup>> open(const shared_memory::name& memory_name);

  const shared_memory::name& own_name() const noexcept { return memory_.own_name(); }

  // Any thread of any process. What was stored before it is visible to the thread that it wakes.
  void ring() noexcept;
  // Whether the owner is in a deep sleep or about to enter one. A thread that has published work checks it and rings if so
  // (idle_wait.hpp).
  bool is_asleep() const noexcept { return page_->is_asleep.load(std::memory_order_seq_cst) != 0; }

  // ---- Its owner's thread
  void set_asleep(bool is_asleep) noexcept { page_->is_asleep.store(is_asleep ? 1 : 0, std::memory_order_seq_cst); }
  // Waits until it is rung, or for `limit`; returns at once if it was rung since the last call. True: it was rung.
  bool wait(std::chrono::nanoseconds limit) noexcept;

 private:
  struct page {
    std::atomic<std::uint32_t> rings;
    std::atomic<std::uint32_t> waiters;  // rings need a system call
    alignas(64) std::atomic<std::uint32_t> is_asleep;
  };
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
  explicit thread_wakeup(shared_memory memory);

  shared_memory memory_;
  page own_{};  // where memory cannot be shared
  page* page_;
  std::uint32_t seen_rings_ = 0;
};

}  // namespace pl::triggered
