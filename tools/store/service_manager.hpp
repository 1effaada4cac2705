// SPDX-License-Identifier: Apache-2.0
// What a service tells systemd (Type=notify): a datagram to the socket that NOTIFY_SOCKET names.
#pragma once

#include <string>

#include "base/status.hpp"

namespace pl::store_tools {

// "READY=1\nSTATUS=...". Without a service manager it does nothing. EINVAL: no socket's name; errors of the socket.
status notify_service_manager(const std::string& state);

}  // namespace pl::store_tools
