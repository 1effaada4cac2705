// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/link_facts.hpp"

#include <cctype>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/text.hpp"
#include "base/whole_file.hpp"
#include "tools/bandwidth/pcie_rate.hpp"
#include "tools/common/pci_facts.hpp"

namespace pl::bandwidth {
namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) { return file_text_or_empty(path.string()); }

std::string read_line(const fs::path& path) {
  std::string text = read_file(path);
  return text.substr(0, text.find('\n'));
}

unsigned read_unsigned(const fs::path& path) {
  const auto value = parse_integer(read_line(path));
  return value && *value > 0 && *value < 1'000'000'000 ? static_cast<unsigned>(*value) : 0;
}

// sysfs names devices "dddd:bb:dd.f" in lower case.
std::string sysfs_name(const std::string& bus_id) {
  unsigned domain = 0, bus = 0, slot = 0, function = 0;
  if (std::sscanf(bus_id.c_str(), "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4) return bus_id;
  return format("%04x:%02x:%02x.%x", domain, bus, slot, function);
}

unsigned byte_at(const std::string& text, std::size_t offset) { return static_cast<unsigned char>(text[offset]); }

unsigned word_at(const std::string& text, std::size_t offset) {
  return offset + 1 < text.size() ? byte_at(text, offset) | byte_at(text, offset + 1) << 8 : 0;
}

// PCI Local Bus Specification: the list of capabilities starts at the byte that 0x34 names; 0x10 is PCI Express.
std::size_t express_capability(const std::string& config) {
  constexpr unsigned kExpress = 0x10;
  if (config.size() < 256) return 0;
  std::size_t offset = byte_at(config, 0x34) & 0xfcu;
  for (int steps = 0; offset >= 0x40 && steps < 48; ++steps) {
    if (byte_at(config, offset) == kExpress) return offset;
    offset = byte_at(config, offset + 1) & 0xfcu;
  }
  return 0;
}

// Extended capabilities start at 0x100; a header has the id in bits 15:0 and the next one's place in bits 31:20.
std::size_t extended_capability(const std::string& config, unsigned wanted) {
  std::size_t offset = 0x100;
  for (int steps = 0; offset >= 0x100 && offset + 8 <= config.size() && steps < 480; ++steps) {
    if (word_at(config, offset) == wanted) return offset;
    offset = word_at(config, offset + 2) >> 4;
  }
  return 0;
}

struct pci_link {
  unsigned generation = 0, width = 0;
};
pci_link read_link(const fs::path& folder, const char* prefix) {
  return {generation_of_speed(read_line(folder / (std::string(prefix) + "_link_speed"))),
          read_unsigned(folder / (std::string(prefix) + "_link_width"))};
}

bool is_pci_device(const fs::path& folder) {
  unsigned domain = 0, bus = 0, slot = 0, function = 0;
  return std::sscanf(folder.filename().c_str(), "%x:%x:%x.%x", &domain, &bus, &slot, &function) == 4;
}

// Above the GPU: the port it is plugged into has the same link as the GPU and is passed over; what is further up carries
// the GPU's data too.
void climb(gpu_link_facts& facts, const fs::path& device) {
  double narrowest = 0;
  bool is_own_port = true;
  for (fs::path bridge = device.parent_path(); is_pci_device(bridge); bridge = bridge.parent_path()) {
    if (redirects_peers(read_file(bridge / "config"))) facts.acs_redirect = true;
    if (std::exchange(is_own_port, false)) continue;
    const auto link = read_link(bridge, "current");
    const double rate = pcie_raw_gb_per_s(link.generation, link.width);
    if (rate <= 0 || (narrowest > 0 && rate >= narrowest)) continue;
    narrowest = rate;
    facts.uplink_generation = link.generation;
    facts.uplink_width = link.width;
    facts.uplink_bus_id = bridge.filename().string();
  }
}

}  // namespace

unsigned generation_of_speed(const std::string& speed) {
  double gt_per_s = 0;
  if (std::sscanf(speed.c_str(), "%lf GT/s", &gt_per_s) != 1) return 0;
  constexpr double kByGeneration[] = {2.5, 5, 8, 16, 32, 64};
  for (unsigned i = 0; i < std::size(kByGeneration); ++i)
    if (gt_per_s == kByGeneration[i]) return i + 1;
  return 0;
}

// PCI Express Base Specification, Device Control register (capability + 8): bits 7:5 are the maximum payload, 128 << n.
unsigned payload_of_config(const std::string& config) {
  const std::size_t express = express_capability(config);
  if (express == 0 || express + 9 >= config.size()) return 0;
  const unsigned code = word_at(config, express + 8) >> 5 & 7u;
  return code <= 5 ? 128u << code : 0;
}

// The same, Access Control Services (extended capability 0x0d), control register at + 6: bit 2 sends requests between
// peers up, bit 3 completions.
bool redirects_peers(const std::string& bridge_config) {
  constexpr unsigned kAccessControl = 0x0d;
  const std::size_t offset = extended_capability(bridge_config, kAccessControl);
  return offset != 0 && (word_at(bridge_config, offset + 6) & 0x0cu) != 0;
}

std::uint64_t corrected_errors_of(const std::string& aer_text) {
  const auto found = aer_text.find("TOTAL_ERR_COR");
  unsigned long long count = 0;
  if (found == std::string::npos || std::sscanf(aer_text.c_str() + found, "TOTAL_ERR_COR %llu", &count) != 1) return 0;
  return count;
}

void read_sysfs(gpu_link_facts& facts, const std::string& sysfs_root) {
  std::error_code none;
  const fs::path device = fs::canonical(fs::path(sysfs_root) / "bus/pci/devices" / sysfs_name(facts.bus_id),
                                        none);  // the real place has the bridges
  if (none) return;
  if (facts.pcie_generation_max == 0) {  // NVML knows better what the GPU can do
    const auto now = read_link(device, "current"), most = read_link(device, "max");
    facts.pcie_generation_now = now.generation, facts.pcie_width_now = now.width;
    facts.pcie_generation_max = most.generation, facts.pcie_width_max = most.width;
  }
  facts.pcie_payload_bytes = payload_of_config(read_file(device / "config"));
  facts.pcie_corrected = corrected_errors_of(read_file(device / "aer_dev_correctable"));
  if (const auto node = parse_integer(read_line(device / "numa_node")); node && *node >= 0)
    facts.numa_node = static_cast<int>(*node);
  // "identity": addresses pass through. "DMA", "DMA-FQ", "DMA-..": every packet is translated.
  facts.behind_iommu = read_line(device / "iommu_group/type").starts_with("DMA");
  if (const auto bytes = tools::bar1_size_bytes(sysfs_name(facts.bus_id), sysfs_root); bytes && facts.bar1_bytes == 0)
    facts.bar1_bytes = *bytes;
  climb(facts, device);
}

int count_numa_nodes(const std::string& sysfs_root) {
  int nodes = 0;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(fs::path(sysfs_root) / "devices/system/node", none)) {
    const std::string name = entry.path().filename().string();
    if (name.size() > 4 && name.starts_with("node") && std::isdigit(static_cast<unsigned char>(name[4])) != 0) ++nodes;
  }
  return nodes > 0 ? nodes : 1;
}

bool is_same_device(const std::string& a, const std::string& b) {
  unsigned domain[2] = {}, bus[2] = {}, slot[2] = {};
  return std::sscanf(a.c_str(), "%x:%x:%x", &domain[0], &bus[0], &slot[0]) == 3 &&
         std::sscanf(b.c_str(), "%x:%x:%x", &domain[1], &bus[1], &slot[1]) == 3 && domain[0] == domain[1] &&
         bus[0] == bus[1] && slot[0] == slot[1];
}

namespace {

// By the speed of a link: NVML's version numbers have changed their meaning over the driver's life. Versions 2 and 3 are
// equally fast; boards with version 3 have 12 links, those with version 2 have 6.
unsigned version_of_speed(unsigned mbps, std::size_t links) {
  if (mbps >= 50'000) return 5;
  if (mbps >= 26'200) return 4;
  if (mbps >= 25'000) return links > 6 ? 3 : 2;
  return mbps != 0 ? 1 : 0;
}

// nvmlNvlinkVersion_t: 1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0. NVIDIA's data sheets give the speeds per link and direction.
unsigned speed_of_code(unsigned code) {
  constexpr unsigned kByCode[] = {0, 20'000, 25'781, 25'781, 25'781, 25'781, 26'562, 53'125};
  return code < std::size(kByCode) ? kByCode[code] : 0;
}

}  // namespace

void apply_nvlinks(gpu_link_facts& facts, const std::vector<tools::nvlink_port>& ports, unsigned mbps_each,
                   const std::vector<gpu_link_facts>& gpus) {
  facts.nvlinks_total = static_cast<unsigned>(ports.size());
  for (const auto& port : ports) {
    if (!port.is_active) continue;
    ++facts.nvlinks_active;
    if (mbps_each == 0) mbps_each = speed_of_code(port.version);
    if (port.remote == tools::nvlink_port::end::network_switch) facts.has_nvswitch = true;
    if (port.remote != tools::nvlink_port::end::gpu) continue;
    for (std::size_t i = 0; i < gpus.size(); ++i)
      if (is_same_device(gpus[i].bus_id, port.remote_bus_id)) ++facts.nvlinks_to_gpu[static_cast<int>(i)];
  }
  facts.nvlink_mbps_each = facts.nvlinks_active != 0 ? mbps_each : 0;
  facts.nvlink_version = version_of_speed(facts.nvlink_mbps_each, ports.size());
}

}  // namespace pl::bandwidth
