// SPDX-License-Identifier: Apache-2.0
// Ctrl-C: the first asks the run to end and to write what it has, the second ends the program.
#pragma once

#include <csignal>

namespace pl::tools {

// SIGINT and SIGTERM of this process while it lives; at most one at a time.
class interrupt_guard {
 public:
  interrupt_guard();
  ~interrupt_guard();
  interrupt_guard(const interrupt_guard&) = delete;
  interrupt_guard& operator=(const interrupt_guard&) = delete;

  static bool raised();

 private:
  struct sigaction old_interrupt_ = {};
  struct sigaction old_terminate_ = {};
};

}  // namespace pl::tools
