// SPDX-License-Identifier: Apache-2.0
#include "base/memory_limit.hpp"

#include <sys/sysinfo.h>

#include <algorithm>
#include <fstream>
#include <optional>

namespace pl {
namespace {

// The files of a memory controller, by version.
struct controller {
  const char* limit;
  const char* used;
  const char* cached[2];  // lines of memory.stat
};
constexpr controller kVersion1{
    "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_active_file", "total_inactive_file"}};
constexpr controller kVersion2{"memory.max", "memory.current", {"active_file", "inactive_file"}};

// visit(folder, files) for the group at `path` and all above it.
template <class Visit>
void for_path(const std::string& root, std::string path, const controller& files, Visit&& visit) {
  for (;;) {
    visit(root + (path == "/" ? "" : path) + "/", files);
    if (path.empty() || path == "/") return;
    path.erase(path.rfind('/'));
  }
}

template <class Visit>
void for_groups(const std::string& groups_file, const std::string& root, Visit&& visit) {
  std::ifstream groups(groups_file);
  // "0::/path" is the group of version 2, "7:cpu,memory:/path" one of version 1.
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':'), second = line.find(":/", first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string path = line.substr(second + 1), controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers == ",,") for_path(root, path, kVersion2, visit);
    if (controllers.find(",memory,") != std::string::npos) for_path(root + "/memory", path, kVersion1, visit);
  }
}

// Nothing for "max", which is no number, and for files that cannot be read.
std::optional<std::uint64_t> number_in(const std::string& file) {
  std::ifstream input(file);
  std::uint64_t value = 0;
  return input >> value ? std::optional(value) : std::nullopt;
}

// The number behind a name at the start of a line; 0: there is none.
std::uint64_t number_of(const std::string& file, const std::string& name) {
  std::ifstream input(file);
  std::uint64_t value = 0;
  for (std::string word, rest; input >> word >> value; std::getline(input, rest))
    if (word == name) return value;
  return 0;
}

// The page cache counts as free, because the kernel drops it before a process exceeds the limit.
std::uint64_t available_in(const std::string& folder, const controller& files) {
  const auto limit = number_in(folder + files.limit), used = number_in(folder + files.used);
  if (!limit || !used) return UINT64_MAX;
  std::uint64_t cached = 0;
  for (const char* const name : files.cached) cached += number_of(folder + "memory.stat", name);
  const std::uint64_t held = *used - std::min(*used, cached);
  return *limit - std::min(*limit, held);
}

}  // namespace

memory_limit usable_memory(const std::string& groups_file, const std::string& root) {
  struct sysinfo now {};
  memory_limit smallest{UINT64_MAX, "the machine's memory"};
  if (sysinfo(&now) == 0) smallest.bytes = std::uint64_t{now.totalram} * now.mem_unit;
  for_groups(groups_file, root, [&](const std::string& folder, const controller& files) {
    const std::string file = folder + files.limit;
    if (const auto limit = number_in(file); limit && *limit < smallest.bytes) smallest = {*limit, file};
  });
  return smallest;
}

std::uint64_t available_memory(const std::string& groups_file, const std::string& root, const std::string& machine_file) {
  std::uint64_t available = number_of(machine_file, "MemAvailable:") * 1024;
  if (available == 0) available = UINT64_MAX;
  for_groups(groups_file, root, [&](const std::string& folder, const controller& files) {
    available = std::min(available, available_in(folder, files));
  });
  return available;
}

}  // namespace pl
