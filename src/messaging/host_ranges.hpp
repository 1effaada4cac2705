// SPDX-License-Identifier: Apache-2.0
// Addresses that can be no GPU's because something else of this process lies there: told without asking the driver.
#pragma once

#include <pthread.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace pl::link {

// The heap that malloc grows by brk (the main thread's blocks of less than about 128 KiB), and the calling thread's stack.
// Neither is a range that CUDA could get from the kernel. Memory that malloc maps may be a GPU's after it was freed, so it
// is not among them. Not thread-safe.
class surely_host {
 public:
  surely_host();
  // True: host memory. False says nothing. No system call, except for a thread's first.
  bool contains(std::uint64_t address, std::size_t bytes) noexcept;

 private:
  struct stack {
    pthread_t of{};
    std::uint64_t begin = 0, end = 0;
  };
  const stack* stack_of_this_thread() noexcept;
  std::uint64_t heap_begin_ = ~0ull;
  std::array<stack, 8> stacks_;  // later threads go without
  std::size_t stack_count_ = 0;
};

}  // namespace pl::link
