// SPDX-License-Identifier: Apache-2.0
// Threads of a tool that begin together, or not at all: a measurement with fewer threads than it says would be wrong, and a
// check that waits for the missing one would not end.
#pragma once

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace pl::tools {

// Calls body(i) for i of [0, count), each on its own thread, and `own` on the caller's; returns when all have returned.
// `body` must not throw. Throws std::system_error if a thread cannot be started; nothing was called then.
template <class Body, class Own>
void run_simultaneously(std::size_t count, const Body& body, const Own& own) {
  enum : int { waits, begins, is_off };
  std::atomic<int> word{waits};
  std::vector<std::jthread> threads;  // joined at the end, also by an exception
  const auto tell = [&word](int order) {
    word.store(order);
    word.notify_all();
  };
  try {
    for (std::size_t i = 0; i < count; ++i)
      threads.emplace_back([&word, &body, i] {
        word.wait(waits);
        if (word.load() == begins) body(i);
      });
  } catch (...) {
    tell(is_off);
    throw;
  }
  tell(begins);
  own();
}

template <class Body>
void run_simultaneously(std::size_t count, const Body& body) {
  run_simultaneously(count, body, [] {});
}

}  // namespace pl::tools
