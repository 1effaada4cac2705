// SPDX-License-Identifier: Apache-2.0
// NUMA nodes by system calls and sysfs: where memory shall lie, and where it really does.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/status.hpp"

namespace pl::bandwidth::numa {

// Nodes that have memory, ascending; {0} where the kernel does not say.
// `sysfs` is another folder in tests.
std::vector<int> nodes(const std::string& sysfs = "/sys");
// The node of a PCI device, "0000:fe:00.0" in any case; -1 if sysfs does not report it (one node, simulated or hidden
// device).
int node_of_pci_device(const std::string& bus_id, const std::string& sysfs = "/sys");
// Pages of [base, base + bytes), not touched yet, will come from `node` alone. The kernel's errno: ENOSYS, EPERM where a
// container forbids it.
status bind(void* base, std::size_t bytes, int node);
// Node that holds the page at `address`; -1 if the kernel does not tell.
int node_of(const void* address);

}  // namespace pl::bandwidth::numa
