// SPDX-License-Identifier: Apache-2.0
// Runs ranks of one machine as on two hosts: each in its own network namespace.
#pragma once

#include <string>

namespace pl::async {

// Moves the calling process into the namespace (a name of `ip netns`, or a path), with the sysfs that shows its devices.
// Before anything opens a socket or starts a thread. Throws tools::tool_failure; it needs root.
void enter_network_namespace(const std::string& name);

}  // namespace pl::async
