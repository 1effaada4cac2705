// SPDX-License-Identifier: Apache-2.0
// Address ranges that are known to be host memory, without a call to the driver.
//
// Owns: only the bounds. Threads: the messenger's lock guards all calls. Errors: none; unknown addresses are not in a range.
#pragma once

#include <pthread.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace pl::messaging {

// The heap that malloc grows by brk (the main thread's blocks of less than about 128 KiB), and the calling thread's stack.
// CUDA cannot get either range from the kernel. Memory that malloc maps is not included: after it is freed, CUDA may map the
// same addresses. Not thread-safe.
class host_ranges {
 public:
  host_ranges();
  // True: host memory. False: unknown. Makes a system call only at a thread's first call.
  bool contains(std::uint64_t address, std::size_t bytes) noexcept;

 private:
  struct stack {
    pthread_t thread{};
    std::uint64_t begin = 0, end = 0;
  };
  const stack* stack_of_this_thread() noexcept;
  std::uint64_t heap_begin_ = ~0ull;
  std::array<stack, 8> stacks_;  // further threads are not cached
  std::size_t stack_count_ = 0;
};

}  // namespace pl::messaging
