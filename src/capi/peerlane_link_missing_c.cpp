// SPDX-License-Identifier: Apache-2.0
// In place of peerlane_link_c.cpp and open_link.cpp where UCX's headers were not there: the same symbols, so that programs
// link and load, and ENOSYS from all of them. Without the header: one body stands for every signature.
#include <array>

#include "capi_call.hpp"

#define PL_MISSING(name)                                                                                                  \
  PL_EXPORT int name() {                                                                                                  \
    return pl::fail(ENOSYS, "this libpeerlane has no messages: it was built without UCX's headers (Debian: libucx-dev)"); \
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

#undef PL_MISSING
