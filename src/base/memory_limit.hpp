// SPDX-License-Identifier: Apache-2.0
// How much memory this process may use.
#pragma once

#include <cstdint>
#include <string>

namespace pl {

struct memory_limit {
  std::uint64_t bytes = 0;
  std::string source;  // what sets it: "the machine's memory", or a file of a control group
};

// The smallest of the machine's memory and the limits of this process's control group and its ancestors (version 2, and the
// memory controller of version 1). A limit that cannot be read does not count. Tests name other files. Thread-safe.
memory_limit usable_memory(const std::string& groups_file = "/proc/self/cgroup", const std::string& root = "/sys/fs/cgroup");

// Bytes that this process may still allocate: the smallest of the kernel's estimate for the machine (MemAvailable) and what
// is left in those groups, where the page cache counts as free. UINT64_MAX: nothing of it can be read. Thread-safe.
std::uint64_t available_memory(const std::string& groups_file = "/proc/self/cgroup",
                               const std::string& root = "/sys/fs/cgroup",
                               const std::string& machine_file = "/proc/meminfo");

}  // namespace pl
