// SPDX-License-Identifier: Apache-2.0
// Measures the cost of packets and handshakes when a job opens.
//
// Owns: nothing. Threads: one in each process, before any other use of the messenger. Errors: those of the bootstrap.
#pragma once

#include "messaging/bootstrap/bootstrap.hpp"
#include "messaging/message_costs.hpp"
#include "messaging/messenger.hpp"
#include "messaging/thresholds.hpp"

namespace pl::messaging {

// Collective; call it before any other use of the messenger. Two processes of each node, and two of different nodes,
// exchange host messages for less than 50 ms each, while the others wait in `group`. Costs that the first process of a node
// has on file are not measured again. `limits` are those of `communicator`, and change during the measurement. If a pair
// fails, its costs stay unknown. Errors: those of `group`.
result<handshake_costs> measure_handshakes(messenger& communicator, bootstrap& group, thresholds& limits,
                                           const std::string& key);

}  // namespace pl::messaging
