// SPDX-License-Identifier: Apache-2.0
// Two processes on two machines: one listens (rank 0), the other connects (rank 1).
#pragma once

#include <memory>
#include <string>

#include "bootstrap.hpp"
#include "status.hpp"

namespace pl::p2p {

// "port" or "address:port"; waits for the other side.
result<std::unique_ptr<link::bootstrap>> listen_for_peer(const std::string& where);
// "host:port"; tries for some time, so that the two may be started in any order.
result<std::unique_ptr<link::bootstrap>> connect_to_peer(const std::string& where);

}  // namespace pl::p2p
