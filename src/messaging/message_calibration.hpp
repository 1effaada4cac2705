// SPDX-License-Identifier: Apache-2.0
// Measures what packets and handshakes cost, when a job opens.
#pragma once

#include "messaging/bootstrap/bootstrap.hpp"
#include "messaging/message_costs.hpp"
#include "messaging/messenger.hpp"
#include "messaging/thresholds.hpp"

namespace pl::link {

// Collective, before the messenger is anybody else's. Two processes of each node and two of different nodes bounce host
// messages, below 50 ms each; the others wait in `with`. Nothing is measured that a node's first process has on file.
// `limits` are those of `by`, which are changed while it measures. A pair that fails leaves its costs unknown; an error is
// one of `with`.
result<handshake_costs> measure_handshakes(messenger& by, bootstrap& with, crossovers& limits, const std::string& key);

}  // namespace pl::link
