// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/numa.hpp"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <fstream>

#include "base/text.hpp"
#include "os/topology.hpp"

namespace pl::bandwidth::numa {
namespace {

constexpr std::size_t kMaxNodes = 1024;  // the kernel's own limit
constexpr std::size_t kBitsPerWord = 8 * sizeof(unsigned long);

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

std::vector<int> nodes(const std::string& sysfs) {
  const auto listed = parse_cpu_list(first_line(sysfs + "/devices/system/node/has_memory"));  // same syntax as CPU lists
  if (!listed) return {0};
  return {listed->begin(), listed->end()};
}

int node_of_pci_device(const std::string& bus_id, const std::string& sysfs) {
  std::string name;
  for (const char c : bus_id) name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto node = parse_integer(first_line(sysfs + "/bus/pci/devices/" + name + "/numa_node"));
  return node ? static_cast<int>(*node) : -1;
}

status bind(void* base, std::size_t bytes, int node) {
  if (node < 0 || static_cast<std::size_t>(node) >= kMaxNodes) return failure{EINVAL, format("no NUMA node %d", node)};
  std::array<unsigned long, kMaxNodes / kBitsPerWord> mask{};
  const auto bit = static_cast<std::size_t>(node);
  mask[bit / kBitsPerWord] = 1ul << (bit % kBitsPerWord);
  if (syscall(SYS_mbind, base, bytes, MPOL_BIND, mask.data(), kMaxNodes + 1, 0u) == 0) return {};
  const int code = errno;
  return failure{
      code, format("binding %s to NUMA node %d failed: %s", format_size(bytes).c_str(), node, errno_text(code).c_str())};
}

int node_of(const void* address) {
  void* page = const_cast<void*>(address);
  int node = -1;
  if (syscall(SYS_move_pages, 0, 1ul, &page, nullptr, &node, 0) != 0) return -1;
  return node >= 0 ? node : -1;  // a negative errno: page not present
}

}  // namespace pl::bandwidth::numa
