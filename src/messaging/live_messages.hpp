// SPDX-License-Identifier: Apache-2.0
// Messages by transport, for `peerlane top` (live_counter.hpp). Messages to oneself and eager messages count at the sender,
// others at the process that moves the data.
//
// Owns: the entries in the table of live counters. Threads: any. Errors: none.
#pragma once

#include "base/live_counter.hpp"

namespace pl::messaging {

inline live_counter g_live_jobs{"messages.jobs", live_kind::level};
inline live_pair g_live_self{"messages.self.count", "messages.self.bytes"};
inline live_pair g_live_eager{"messages.eager.count", "messages.eager.bytes"};
inline live_pair g_live_shared_ring{"messages.shared_ring.count", "messages.shared_ring.bytes"};
inline live_pair g_live_ipc{"messages.ipc.count", "messages.ipc.bytes"};
inline live_pair g_live_dma{"messages.dma.count", "messages.dma.bytes"};
inline live_pair g_live_network{"messages.network.count", "messages.network.bytes"};
inline live_pair g_live_pulled{"messages.pulled.count", "messages.pulled.bytes"};

}  // namespace pl::messaging
