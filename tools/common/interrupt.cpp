// SPDX-License-Identifier: Apache-2.0
#include "tools/common/interrupt.hpp"

#include <unistd.h>

namespace pl::tools {
namespace {

volatile std::sig_atomic_t g_raised = 0;

void on_signal(int) {
  static const char kText[] = "\nstopping; what is known so far will be written (again: at once)\n";
  g_raised = 1;
  // Nothing can be done here about a closed terminal.
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kText, sizeof kText - 1);
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

}  // namespace

interrupt_guard::interrupt_guard() {
  g_raised = 0;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, &old_interrupt_);
  sigaction(SIGTERM, &action, &old_terminate_);
}

interrupt_guard::~interrupt_guard() {
  sigaction(SIGINT, &old_interrupt_, nullptr);
  sigaction(SIGTERM, &old_terminate_, nullptr);
}

bool interrupt_guard::raised() { return g_raised != 0; }

}  // namespace pl::tools
