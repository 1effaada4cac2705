// SPDX-License-Identifier: Apache-2.0
// A queue of fixed size for any number of threads on both ends, without a lock: threads that look for work all the time
// would otherwise contend for a mutex with each other and with those who bring it.
//
// Each cell has a number that says whose turn it is: `i` before the i-th push, `i + 1` until its pop, then `i + cells`.
// A thread takes a number by one compare-and-swap of head or tail, and then owns the cell (D. Vyukov's bounded queue).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

namespace pl {

// `T` is default-constructible and moved without throwing. `kCells` is a power of two.
template <class T, std::size_t kCells>
class bounded_queue {
  static_assert(kCells >= 2 && (kCells & (kCells - 1)) == 0);

 public:
  bounded_queue() : cells_(std::make_unique<std::array<cell, kCells>>()) {
    for (std::size_t i = 0; i < kCells; ++i) (*cells_)[i].turn.store(i, std::memory_order_relaxed);
  }

  // Returns false if the queue is full; `value` is then unchanged. What the caller did before happens before what
  // follows the pop.
  bool push(T& value) {
    std::size_t number = tail_.load(std::memory_order_relaxed);
    for (;;) {
      cell& mine = (*cells_)[number % kCells];
      const auto ahead = static_cast<std::ptrdiff_t>(mine.turn.load(std::memory_order_acquire) - number);
      if (ahead < 0) return false;
      if (ahead > 0) {
        number = tail_.load(std::memory_order_relaxed);
      } else if (tail_.compare_exchange_weak(number, number + 1, std::memory_order_relaxed)) {
        mine.value = std::move(value);
        mine.turn.store(number + 1, std::memory_order_release);
        return true;
      }
    }
  }

  // Returns nothing if the queue is empty, or the next value is just being pushed.
  std::optional<T> pop() {
    std::size_t number = head_.load(std::memory_order_relaxed);
    for (;;) {
      cell& mine = (*cells_)[number % kCells];
      const auto ahead = static_cast<std::ptrdiff_t>(mine.turn.load(std::memory_order_acquire) - (number + 1));
      if (ahead < 0) return std::nullopt;
      if (ahead > 0) {
        number = head_.load(std::memory_order_relaxed);
      } else if (head_.compare_exchange_weak(number, number + 1, std::memory_order_relaxed)) {
        std::optional<T> out(std::exchange(mine.value, T()));
        mine.turn.store(number + kCells, std::memory_order_release);
        return out;
      }
    }
  }

  // A recent value while others push and pop.
  std::size_t size() const noexcept {
    const std::size_t head = head_.load(std::memory_order_relaxed), tail = tail_.load(std::memory_order_relaxed);
    return tail - head <= kCells ? tail - head : 0;  // head is the older of the two values
  }
  // Returns false also while the next value is just being pushed.
  bool is_empty() const noexcept {
    const std::size_t number = head_.load(std::memory_order_relaxed);
    return (*cells_)[number % kCells].turn.load(std::memory_order_acquire) == number;
  }

 private:
  struct cell {
    std::atomic<std::size_t> turn;
    T value{};
  };
  static constexpr std::size_t kLine = 64;  // what threads on both ends write has cache lines of its own

  std::unique_ptr<std::array<cell, kCells>> cells_;
  alignas(kLine) std::atomic<std::size_t> head_{0};
  alignas(kLine) std::atomic<std::size_t> tail_{0};
};

}  // namespace pl
