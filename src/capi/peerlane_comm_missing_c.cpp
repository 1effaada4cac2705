// SPDX-License-Identifier: Apache-2.0
// Replaces the implementation of peerlane/communicator.h, peerlane/collectives.h and peerlane/triggered.h in builds without
// UCX's headers: the same symbols, so that programs link and load, and ENOSYS from each. The header is not included, because
// one body serves every signature.
#include <array>

#include "capi/capi_call.hpp"

#define PL_MISSING(name)                                                                                                    \
  PL_EXPORT int name() {                                                                                                    \
    return pl::fail(ENOSYS,                                                                                                 \
                    "this libpeerlane has no messages and no stream contexts: it was built without UCX's headers (Debian: " \
                    "libucx-dev)");                                                                                         \
  }

PL_MISSING(peerlane_comm_open)
PL_MISSING(peerlane_comm_close)
PL_MISSING(peerlane_comm_rank)
PL_MISSING(peerlane_comm_size)
PL_MISSING(peerlane_comm_peer_state)
PL_MISSING(peerlane_comm_is_same_node)
PL_MISSING(peerlane_comm_isend)
PL_MISSING(peerlane_comm_irecv)
PL_MISSING(peerlane_comm_send)
PL_MISSING(peerlane_comm_recv)
PL_MISSING(peerlane_comm_probe)
PL_MISSING(peerlane_comm_mprobe)
PL_MISSING(peerlane_comm_irecv_matched)
PL_MISSING(peerlane_comm_release_message)
PL_MISSING(peerlane_comm_expose)
PL_MISSING(peerlane_comm_allocate)
PL_MISSING(peerlane_comm_release_window)
PL_MISSING(peerlane_comm_put)
PL_MISSING(peerlane_comm_put_signal)
PL_MISSING(peerlane_comm_wait_signal)
PL_MISSING(peerlane_comm_get)
PL_MISSING(peerlane_comm_flush)
PL_MISSING(peerlane_comm_atomic)
PL_MISSING(peerlane_comm_register)
PL_MISSING(peerlane_comm_release_registered)
PL_MISSING(peerlane_comm_progress)
PL_MISSING(peerlane_comm_event_descriptor)
PL_MISSING(peerlane_comm_arm)
PL_MISSING(peerlane_comm_barrier)
PL_MISSING(peerlane_comm_all_gather)
PL_MISSING(peerlane_comm_get_statistics)
PL_MISSING(peerlane_comm_plan)
PL_MISSING(peerlane_comm_ibarrier)
PL_MISSING(peerlane_comm_ibroadcast)
PL_MISSING(peerlane_comm_igather)
PL_MISSING(peerlane_comm_iscatter)
PL_MISSING(peerlane_comm_iall_gather)
PL_MISSING(peerlane_comm_ireduce)
PL_MISSING(peerlane_comm_iall_reduce)
PL_MISSING(peerlane_comm_ireduce_scatter)
PL_MISSING(peerlane_comm_iall_to_all)
PL_MISSING(peerlane_comm_iall_to_allv)
PL_MISSING(peerlane_comm_restore_collectives)
PL_MISSING(peerlane_comm_algorithms)
PL_MISSING(peerlane_triggered_open)
PL_MISSING(peerlane_triggered_close)
PL_MISSING(peerlane_triggered_rank)
PL_MISSING(peerlane_triggered_size)
PL_MISSING(peerlane_triggered_query)
PL_MISSING(peerlane_triggered_set_mode)
PL_MISSING(peerlane_triggered_all_gather)
PL_MISSING(peerlane_triggered_diag)
PL_MISSING(peerlane_triggered_expose)
PL_MISSING(peerlane_triggered_release_window)
PL_MISSING(peerlane_triggered_import)
PL_MISSING(peerlane_triggered_release_remote)
PL_MISSING(peerlane_channel_connect)
PL_MISSING(peerlane_channel_ready)
PL_MISSING(peerlane_channel_close)
PL_MISSING(peerlane_channel_put_signal)
PL_MISSING(peerlane_channel_signal)
PL_MISSING(peerlane_channel_wait_signal)
PL_MISSING(peerlane_channel_release)
PL_MISSING(peerlane_channel_arrived)
PL_MISSING(peerlane_channel_host_wait)
PL_MISSING(peerlane_channel_cancel)
PL_MISSING(peerlane_channel_get_state)
PL_MISSING(peerlane_channel_diag)
PL_MISSING(peerlane_batch_begin)
PL_MISSING(peerlane_batch_add)
PL_MISSING(peerlane_batch_submit)
PL_MISSING(peerlane_batch_release)

#undef PL_MISSING
