// SPDX-License-Identifier: Apache-2.0
#include "triggered/thread_wakeup.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>
#include <utility>

namespace pl::triggered {

thread_wakeup::thread_wakeup(shared_memory memory)
    : memory_(std::move(memory)), page_(memory_.data() != nullptr ? reinterpret_cast<page*>(memory_.data()) : &own_) {}

std::shared_ptr<thread_wakeup> thread_wakeup::make() {
  auto memory = shared_memory::make("peerlane-wakeup", sizeof(page));
  return std::shared_ptr<thread_wakeup>(new thread_wakeup(memory ? std::move(memory).value() : shared_memory{}));
}

result<std::shared_ptr<thread_wakeup>> thread_wakeup::open(const shared_memory::name& memory_name) {
  auto memory = shared_memory::open(memory_name);
  if (!memory) return memory.error();
  if (memory->size_bytes() < sizeof(page)) return failure{EINVAL, "a peer's wake-up word is too small"};
  return std::shared_ptr<thread_wakeup>(new thread_wakeup(std::move(memory).value()));
}

void thread_wakeup::ring() noexcept {
  page_->rings.fetch_add(1, std::memory_order_seq_cst);
  if (page_->waiters.load(std::memory_order_seq_cst) != 0)
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&page_->rings), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// The kernel compares the count again, so a ring between our look and its sleep is not lost. A sleep may end with no new
// ring: by a signal, or by the system call of a ring that the last wait has already heard.
bool thread_wakeup::wait(std::chrono::nanoseconds limit) noexcept {
  using clock = std::chrono::steady_clock;
  const auto begin = clock::now();
  page_->waiters.store(1, std::memory_order_seq_cst);
  while (page_->rings.load(std::memory_order_seq_cst) == seen_rings_) {
    const auto left = limit - (clock::now() - begin);
    if (left.count() <= 0) break;
    timespec time{};
    time.tv_sec = static_cast<time_t>(left.count() / 1'000'000'000);
    time.tv_nsec = static_cast<long>(left.count() % 1'000'000'000);
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&page_->rings), FUTEX_WAIT, seen_rings_, &time, nullptr, 0);
  }
  page_->waiters.store(0, std::memory_order_relaxed);
  const auto before = seen_rings_;
  seen_rings_ = page_->rings.load(std::memory_order_seq_cst);
  return seen_rings_ != before;
}

}  // namespace pl::triggered
