// SPDX-License-Identifier: Apache-2.0
// CUDA calls with a time limit. Some calls wait for running kernels (allocating memory does on some drivers), and a program
// may be mapping the very flag that its kernel waits for. So the work runs on a thread of its own and the caller waits at
// most kBoundedCallLimitMs.
#pragma once

#include <functional>
#include <memory>

#include "base/status.hpp"
#include "cuda/driver_table.hpp"

namespace pl {

// About a hundred times the duration on an idle GPU, and short enough for a caller whose wait fails.
constexpr int kBoundedCallLimitMs = 2000;

class bounded_call {
 public:
  // Starts `work` on a thread in relaxed stream capture mode with all signals blocked. `work` owns everything it uses,
  // because it may end after every caller has left. EAGAIN if no thread can be started.
  static result<std::shared_ptr<bounded_call>> start(const cu::driver_table& cuda, std::function<status()> work);

  // The outcome of `work`; ETIMEDOUT after kBoundedCallLimitMs. May be called again, by any thread.
  status wait() const;
  bool has_ended() const;

  struct state;
  explicit bounded_call(std::shared_ptr<state> shared) : shared_(std::move(shared)) {}

 private:
  std::shared_ptr<state> shared_;
};

// Runs `work` on a thread of its own, and waits for it.
status call_bounded(const cu::driver_table& cuda, std::function<status()> work);

}  // namespace pl
