// SPDX-License-Identifier: Apache-2.0
// Counts the calls that use an owner (a communicator, a store), so that close() on another thread waits for them before it
// frees what they use.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "gil.hpp"
#include "process.hpp"

namespace pl::py {

class call_gate {
 public:
  // Scope of a call. False: the owner is closed, and the call must not use it. True if `gate` is null.
  class entry {
   public:
    explicit entry(call_gate* gate) : gate_(gate) {
      if (gate_ == nullptr) return;
      ++gate_->inside_;
      is_in_ = !gate_->is_closing_;
      if (is_in_) ++depth();
      else --gate_->inside_;
    }
    ~entry() {
      if (gate_ == nullptr || !is_in_) return;
      --depth();
      --gate_->inside_;
    }
    entry(const entry&) = delete;
    entry& operator=(const entry&) = delete;
    explicit operator bool() const noexcept { return is_in_; }

   private:
    call_gate* const gate_;
    bool is_in_ = true;
  };

  // Refuses new calls and waits for those in progress. Do not hold the GIL, which they may need. False: the interpreter is
  // ending, and a thread in a call sleeps for ever (gil.hpp), so the owner must not be freed.
  bool close() {
    constexpr std::chrono::microseconds kSleep(200);
    constexpr std::chrono::milliseconds kEndOfCalls(500);  // a waiting call checks the gate more often
    is_closing_ = true;
    for (std::chrono::microseconds waited{0}; inside_ != 0; waited += kSleep) {
      if (waited > kEndOfCalls && interpreter_end::is_over()) return false;
      std::this_thread::sleep_for(kSleep);
    }
    return true;
  }
  // True in a forked child: the owner is the parent's, and the threads that were in calls are not here to leave them.
  bool is_inherited() const noexcept { return process_ != process_number(); }
  // True: this thread is inside a call and runs a function given to then(). Its close() would wait for itself.
  static bool is_in_call() noexcept { return depth() != 0; }

 private:
  static int& depth() noexcept {
    static thread_local int calls = 0;
    return calls;
  }
  // Sequentially consistent, so that either the call sees that the owner closes, or close() sees the call.
  std::atomic<int> inside_{0};
  std::atomic<bool> is_closing_{false};
  const pid_t process_ = process_number();
};
using call_gate_ref = std::shared_ptr<call_gate>;

}  // namespace pl::py
