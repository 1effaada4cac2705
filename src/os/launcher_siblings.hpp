// SPDX-License-Identifier: Apache-2.0
// Processes of one job read each other's memory and take each other's descriptors (process_vm_readv, pidfd_getfd). With
// Yama's ptrace_scope at 1, as Ubuntu has it, the kernel lets only a process's ancestors do that, and whom the process
// names.
#pragma once

#include <sys/prctl.h>
#include <unistd.h>

namespace pl {

// Names the descendants of this process's parent: whom the launcher has started, and nobody else of this user. Nothing for a
// child of init, whose descendants are all processes. Without Yama it does nothing, and no error is one.
inline void let_launcher_siblings_in() noexcept {
  const pid_t parent = getppid();
  if (parent > 1) static_cast<void>(prctl(PR_SET_PTRACER, static_cast<unsigned long>(parent), 0ul, 0ul, 0ul));
}

}  // namespace pl
