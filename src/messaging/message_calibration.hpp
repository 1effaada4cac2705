// SPDX-License-Identifier: Apache-2.0
// Measures what packets and handshakes cost, when a job opens.
//
// Owns: nothing. Threads: one in each process, before the messenger is used otherwise. Errors: those of the bootstrap.
#pragma once

#include "messaging/bootstrap/bootstrap.hpp"
#include "messaging/message_costs.hpp"
#include "messaging/messenger.hpp"
#include "messaging/thresholds.hpp"

namespace pl::messaging {

// Collective, before the messenger is used otherwise. Two processes of each node and two of different nodes exchange host
// messages, for less than 50 ms each; the others wait in `group`. Costs that a node's first process has on file are not
// measured again. `limits` are those of `communicator` and change during the measurement. The costs of a pair that fails
// stay unknown; an error is one of `group`.
result<handshake_costs> measure_handshakes(messenger& communicator, bootstrap& group, thresholds& limits,
                                           const std::string& key);

}  // namespace pl::messaging
