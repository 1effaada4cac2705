// SPDX-License-Identifier: Apache-2.0
// The end of another process is seen, with a pidfd and where a container's filter refuses them.
#include "os/process_end.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "test/messaging/refused_call.hpp"

namespace pl {
namespace {

pid_t start_child() {
  const pid_t made = fork();
  if (made == 0) {
    pause();
    _exit(0);
  }
  return made;
}

// 0, or the line that failed.
int watch_a_child(bool has_descriptor) {
  const pid_t child = start_child();
  const process_end watched(child);
  if (!watched || watched.has_ended()) return __LINE__;
  if ((watched.descriptor() >= 0) != has_descriptor) return __LINE__;
  kill(child, SIGKILL);
  siginfo_t seen{};
  if (waitid(P_PID, static_cast<id_t>(child), &seen, WEXITED | WNOWAIT) != 0) return __LINE__;
  if (!watched.has_ended()) return __LINE__;  // nobody has reaped it yet
  waitpid(child, nullptr, 0);
  if (!watched.has_ended()) return __LINE__;
  if (!process_end(child).has_ended()) return __LINE__;  // from the start
  return process_end().has_ended() || process_end() ? __LINE__ : 0;
}

int in_a_child_without_pidfds(int code) {
  const pid_t child = fork();
  if (child == 0) _exit(messaging::refuse_call(SYS_pidfd_open, code) && watch_a_child(false) == 0 ? 0 : 1);
  int state = -1;
  waitpid(child, &state, 0);
  return state;
}

TEST(ProcessEnd, IsSeenByADescriptor) { EXPECT_EQ(watch_a_child(true), 0); }

TEST(ProcessEnd, IsSeenByTheNumberWhereAFilterRefusesDescriptors) {
  EXPECT_EQ(in_a_child_without_pidfds(EPERM), 0);
  EXPECT_EQ(in_a_child_without_pidfds(ENOSYS), 0);
}

}  // namespace
}  // namespace pl
