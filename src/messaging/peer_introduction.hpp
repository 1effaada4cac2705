// SPDX-License-Identifier: Apache-2.0
// Connects a job: every process tells the others where it is and how it is reached.
//
// Owns nothing. Threads: once, when the messenger opens.
// Errors: EPROTO another version of the library, EPERM processes of a node that may not open each other's memory, ENOSYS a
// peer that could not open its messenger; errors of the bootstrap and of UCX.
#pragma once

#include "messaging/direct_windows.hpp"
#include "messaging/packet_channel.hpp"

namespace pl::messaging {

// Collective. The value: every process asks for a calibration.
result<bool> introduce_peers(bootstrap& group, messenger_context& context, packet_channel& channel, peer_watch& watch,
                             direct_windows& windows);

}  // namespace pl::messaging
