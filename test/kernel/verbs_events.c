// SPDX-License-Identifier: Apache-2.0
// Preloaded in guests with soft-RoCE: a queue pair that has failed tells the end of its receives (LAST_WQE_REACHED) once.
//
// rxe tells it at each run of its responder, an adapter once. UCX up to 1.22 asserts that no second one comes while it still
// handles the first (ib_device.c: `wait_ctx->cb_id == UCS_CALLBACKQ_ID_NULL`; its commit 035e0955 takes the assertion out).
// Ubuntu 24.04's UCX 1.16 is built with assertions, and every process whose peer had gone was aborted.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdatomic.h>

// By the queue pair's number. Numbers are given in turn, so that two that are alive at once do not meet here.
enum { kNumbers = 1 << 16 };
static atomic_uchar was_told[kNumbers];

int ibv_get_async_event(struct ibv_context* context, struct ibv_async_event* event) {
  int (*next)(struct ibv_context*, struct ibv_async_event*) =
      (int (*)(struct ibv_context*, struct ibv_async_event*))dlsym(RTLD_NEXT, "ibv_get_async_event");
  const int code = next(context, event);
  if (code != 0 || event->event_type != IBV_EVENT_QP_LAST_WQE_REACHED) return code;
  if (atomic_exchange(&was_told[event->element.qp->qp_num % kNumbers], 1) == 0) return 0;
  ibv_ack_async_event(event);
  errno = EAGAIN;  // as where nothing has happened: the caller goes back to its poll
  return -1;
}

int ibv_destroy_qp(struct ibv_qp* qp) {
  int (*next)(struct ibv_qp*) = (int (*)(struct ibv_qp*))dlsym(RTLD_NEXT, "ibv_destroy_qp");
  const unsigned number = qp->qp_num % kNumbers;
  const int code = next(qp);
  if (code == 0) atomic_store(&was_told[number], 0);
  return code;
}
