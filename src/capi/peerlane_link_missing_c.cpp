// SPDX-License-Identifier: Apache-2.0
// Replaces the implementation of peerlane/link.h and peerlane/stream.h in builds without UCX's headers: the same symbols,
// so that programs link and load, and ENOSYS from each. The header is not included, because one body serves every
// signature.
#include <array>

#include "capi/capi_call.hpp"

#define PL_MISSING(name)                                                                                                    \
  PL_EXPORT int name() {                                                                                                    \
    return pl::fail(ENOSYS,                                                                                                 \
                    "this libpeerlane has no messages and no stream contexts: it was built without UCX's headers (Debian: " \
                    "libucx-dev)");                                                                                         \
  }

PL_MISSING(peerlane_link_open)
PL_MISSING(peerlane_link_close)
PL_MISSING(peerlane_link_rank)
PL_MISSING(peerlane_link_size)
PL_MISSING(peerlane_link_peer_state)
PL_MISSING(peerlane_link_is_same_node)
PL_MISSING(peerlane_link_isend)
PL_MISSING(peerlane_link_irecv)
PL_MISSING(peerlane_link_send)
PL_MISSING(peerlane_link_recv)
PL_MISSING(peerlane_link_test)
PL_MISSING(peerlane_link_wait)
PL_MISSING(peerlane_link_wait_any)
PL_MISSING(peerlane_link_wait_all)
PL_MISSING(peerlane_link_cancel)
PL_MISSING(peerlane_link_free)
PL_MISSING(peerlane_link_probe)
PL_MISSING(peerlane_link_mprobe)
PL_MISSING(peerlane_link_receive_matched)
PL_MISSING(peerlane_link_discard)
PL_MISSING(peerlane_link_expose)
PL_MISSING(peerlane_link_unexpose)
PL_MISSING(peerlane_link_put)
PL_MISSING(peerlane_link_get)
PL_MISSING(peerlane_link_flush)
PL_MISSING(peerlane_link_atomic)
PL_MISSING(peerlane_link_register)
PL_MISSING(peerlane_link_unregister)
PL_MISSING(peerlane_link_progress)
PL_MISSING(peerlane_link_barrier)
PL_MISSING(peerlane_link_all_gather)
PL_MISSING(peerlane_link_get_statistics)
PL_MISSING(peerlane_link_plan)
PL_MISSING(peerlane_stream_open)
PL_MISSING(peerlane_stream_close)
PL_MISSING(peerlane_stream_rank)
PL_MISSING(peerlane_stream_size)
PL_MISSING(peerlane_stream_query)
PL_MISSING(peerlane_stream_set_mode)
PL_MISSING(peerlane_stream_all_gather)
PL_MISSING(peerlane_stream_diag)
PL_MISSING(peerlane_stream_expose)
PL_MISSING(peerlane_stream_withdraw)
PL_MISSING(peerlane_stream_import)
PL_MISSING(peerlane_stream_drop)
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
PL_MISSING(peerlane_batch_drop)

#undef PL_MISSING
