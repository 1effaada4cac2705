// SPDX-License-Identifier: Apache-2.0
// Processes of one job read each other's memory and take each other's descriptors (process_vm_readv, pidfd_getfd). With
// Yama's ptrace_scope at 1, as on Ubuntu, the kernel allows that only to a process's ancestors and to those that the
// process names.
#pragma once

#include <sys/prctl.h>
#include <unistd.h>

namespace pl {

// Names the descendants of this process's parent: those that the launcher has started, and nobody else of this user.
// Does nothing for a child of init, whose descendants are all processes, and nothing without Yama. Failures are no
// errors.
inline void let_launcher_siblings_in() noexcept {
  const pid_t parent = getppid();
  if (parent > 1) static_cast<void>(prctl(PR_SET_PTRACER, static_cast<unsigned long>(parent), 0ul, 0ul, 0ul));
}

}  // namespace pl
