// SPDX-License-Identifier: Apache-2.0
#include "base/memory_limit.hpp"

#include <sys/sysinfo.h>

#include <fstream>

namespace pl {
namespace {

// Of the group at `path` and of all above it.
void take_limits(const std::string& root, std::string path, const char* name, memory_limit& smallest) {
  for (;;) {
    const std::string file = root + (path == "/" ? "" : path) + "/" + name;
    std::ifstream input(file);
    std::uint64_t bytes = 0;
    if (input >> bytes && bytes < smallest.bytes) smallest = {bytes, file};  // "max" is no number
    if (path.empty() || path == "/") return;
    path.erase(path.rfind('/'));
  }
}

}  // namespace

memory_limit usable_memory(const std::string& groups_file, const std::string& root) {
  struct sysinfo now {};
  memory_limit smallest{UINT64_MAX, "the machine's memory"};
  if (sysinfo(&now) == 0) smallest.bytes = std::uint64_t{now.totalram} * now.mem_unit;
  std::ifstream groups(groups_file);
  // "0::/path" is the group of version 2, "7:cpu,memory:/path" one of version 1.
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':'), second = line.find(":/", first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string path = line.substr(second + 1), controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers == ",,") take_limits(root, path, "memory.max", smallest);
    if (controllers.find(",memory,") != std::string::npos)
      take_limits(root + "/memory", path, "memory.limit_in_bytes", smallest);
  }
  return smallest;
}

}  // namespace pl
