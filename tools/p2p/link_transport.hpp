// SPDX-License-Identifier: Apache-2.0
// Peerlane's own messaging layer as a transport.
#pragma once

#include <memory>

#include "cuda/driver_table.hpp"
#include "messaging/bootstrap/bootstrap.hpp"
#include "tools/p2p/transport.hpp"

namespace pl::p2p {

// Collective. `cuda` may be null: host memory only.
std::unique_ptr<transport> open_link(const cu::driver_table* cuda, messaging::bootstrap& group);

}  // namespace pl::p2p
