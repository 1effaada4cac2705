// SPDX-License-Identifier: Apache-2.0
// Fibers: how the threads of one block share an OS thread. A fiber never moves to another OS thread.
//
// The switch is hand-written: swapcontext makes two system calls each time, and a polling kernel switches at every
// load. Sanitizers are told about every switch, so they see each CUDA thread as a thread of its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pl::sim {

class fiber {
 public:
  using function = void (*)(void* argument);

  fiber();
  ~fiber();
  fiber(const fiber&) = delete;
  fiber& operator=(const fiber&) = delete;

  // Next resume() enters run(argument) from the top. `run` must not return: it ends with a last leave() after which
  // nobody resumes this fiber. What its stack held is forgotten, not destroyed.
  void start(function run, void* argument);
  // Scheduler to fiber; returns when the fiber leaves.
  void resume();
  // Fiber to scheduler. `for_good`: this fiber will not be resumed before another start().
  void leave(bool for_good);
  // False once the stack has been overrun.
  bool is_stack_intact() const;

 private:
  static void enter();

  const std::size_t colour_bytes_;
  std::byte* stack_;
  void* own_sp_ = nullptr;
  void* scheduler_sp_ = nullptr;
  function run_ = nullptr;
  void* argument_ = nullptr;
  // sanitizers' view of the two sides
  void* tsan_own_ = nullptr;
  void* tsan_scheduler_ = nullptr;
  void* asan_own_ = nullptr;
  void* asan_scheduler_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  std::size_t scheduler_stack_bytes_ = 0;
};

}  // namespace pl::sim
