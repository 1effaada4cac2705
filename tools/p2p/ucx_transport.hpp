// SPDX-License-Identifier: Apache-2.0
// UCX alone, as an application without Peerlane would use it: plain tagged messages, the kind of memory found out by UCX.
#pragma once

#include <memory>

#include "messaging/bootstrap/bootstrap.hpp"
#include "tools/p2p/transport.hpp"

namespace pl::p2p {

// Collective. The library is the one that PEERLANE_UCX_LIBRARY names, else the installed one. With `device_memory`, a UCX
// without CUDA support is refused: it would touch GPU addresses by the CPU. `has_windows`: with put, get and atomics, which
// may change the lanes that UCX chooses for messages.
std::unique_ptr<transport> open_ucx_transport(bool device_memory, messaging::bootstrap& group, bool has_windows = false);

}  // namespace pl::p2p
