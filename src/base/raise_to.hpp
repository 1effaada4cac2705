// SPDX-License-Identifier: Apache-2.0
// A maximum that several threads raise.
#pragma once

#include <atomic>

namespace pl {

// Raises `number` to at least `value` and returns what it holds then: `value`, or the greater number of another thread.
// `order`: relaxed or acq_rel, of the load and of the change.
template <class T>
T raise_to(std::atomic<T>& number, T value, std::memory_order order) noexcept {
  T seen = number.load(order == std::memory_order_relaxed ? order : std::memory_order_acquire);
  while (seen < value) {
    if (number.compare_exchange_weak(seen, value, order)) return value;
  }
  return seen;
}

}  // namespace pl
