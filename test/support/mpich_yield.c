// SPDX-License-Identifier: Apache-2.0
// Preloaded into ranks of an MPICH that moves messages by UCX: a rank that waits lets others have its CPU, as Open MPI's do
// with
// --oversubscribe. Without it three ranks on two CPUs spend most of their time in polls of the one that nobody waits for.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>

enum { kIdlePolls = 100 };  // some microseconds: ranks that answer at once are met without a system call

unsigned ucp_worker_progress(void* worker) {
  static unsigned (*next)(void*);
  static __thread int idle;
  // Not RTLD_NEXT: an MPI that Python has opened is not in its order.
  if (next == NULL) {
    void* const ucx = dlopen("libucp.so.0", RTLD_LAZY);
    if (ucx != NULL) next = (unsigned (*)(void*))dlsym(ucx, "ucp_worker_progress");
    if (next == NULL) abort();
  }
  const unsigned done = next(worker);
  idle = done == 0 ? idle + 1 : 0;
  if (idle >= kIdlePolls) {
    idle = 0;
    sched_yield();
  }
  return done;
}
