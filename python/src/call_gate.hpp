// SPDX-License-Identifier: Apache-2.0
// Keeps an owner open while calls are in it: its close() beside them would take its memory away.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "gil.hpp"

namespace pl::py {

class call_gate {
 public:
  // A call that is in, if it converts to true; else the owner is closed. Without a gate it is always in.
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

  // Lets no call in any more, and waits for those that are in. Not with the GIL, which they may need. False: the interpreter
  // has ended, and a thread that was in a call then sleeps for good: what the call uses must stay.
  bool close() {
    constexpr std::chrono::microseconds kNap(200);
    constexpr std::chrono::milliseconds kEndOfCalls(500);  // more than a wait's next look at the gate
    is_closing_ = true;
    for (std::chrono::microseconds waited{0}; inside_ != 0; waited += kNap) {
      if (waited > kEndOfCalls && interpreter_end::is_over()) return false;
      std::this_thread::sleep_for(kNap);
    }
    return true;
  }
  // True: this thread is in a call, and is at a function of then(). It would wait for itself.
  static bool is_in_call() noexcept { return depth() != 0; }

 private:
  static int& depth() noexcept {
    static thread_local int calls = 0;
    return calls;
  }
  // Both sequentially consistent: either a call sees that the owner closes, or the closer sees the call.
  std::atomic<int> inside_{0};
  std::atomic<bool> is_closing_{false};
};
using call_gate_ref = std::shared_ptr<call_gate>;

}  // namespace pl::py
