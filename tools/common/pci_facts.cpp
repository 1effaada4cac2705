// SPDX-License-Identifier: Apache-2.0
#include "tools/common/pci_facts.hpp"

#include <fstream>
#include <sstream>

namespace pl::tools {
namespace {
// include/linux/ioport.h: the flags column of the resource file.
constexpr std::uint64_t kMemory = 0x200;
constexpr std::uint64_t kPrefetch = 0x2000;
constexpr int kRegions = 6;  // lines after the sixth are the ROM and bridge windows
}  // namespace

std::optional<std::uint64_t> largest_prefetchable_bytes(const std::string& resource_text) {
  std::istringstream lines(resource_text);
  std::optional<std::uint64_t> largest;
  std::string line;
  for (int region = 0; region < kRegions && std::getline(lines, line); ++region) {
    std::istringstream fields(line);
    std::uint64_t begin = 0, last = 0, flags = 0;
    if (!(fields >> std::hex >> begin >> last >> flags)) continue;
    if ((flags & kMemory) == 0 || (flags & kPrefetch) == 0 || last <= begin) continue;
    const std::uint64_t bytes = last - begin + 1;
    if (!largest || bytes > *largest) largest = bytes;
  }
  return largest;
}

std::optional<std::uint64_t> bar1_size_bytes(const std::string& bus_id, const std::string& sysfs_root) {
  std::ifstream file(sysfs_root + "/bus/pci/devices/" + bus_id + "/resource");
  if (!file) return std::nullopt;
  std::stringstream text;
  text << file.rdbuf();
  return largest_prefetchable_bytes(text.str());
}

}  // namespace pl::tools
