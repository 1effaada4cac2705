// SPDX-License-Identifier: Apache-2.0
#include "tools/machine/pci_tree.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "base/whole_file.hpp"
#include "tools/common/pci_facts.hpp"
#include "tools/machine/sysfs_text.hpp"

namespace pl::tools::topo {
namespace {

namespace fs = std::filesystem;

unsigned read_number(const fs::path& file) { return static_cast<unsigned>(read_integer(file).value_or(0)); }

link_rate read_link(const fs::path& folder, const std::string& prefix) {
  link_rate out;
  out.gt_per_s = parse_link_speed(read_text(folder / (prefix + "_link_speed")).value_or(""));
  const unsigned width = read_number(folder / (prefix + "_link_width"));
  out.width = width <= 32 ? width : 0;  // 255 and 63 stand for "not known"
  return out;
}

// The part of a real path from the host bridge on: "pci0000:15", "0000:15:01.0", ... Machines put host bridges below
// other devices (ACPI, VMBus), which say nothing about the way of the data.
std::vector<std::string> chain_of(const fs::path& real_folder) {
  std::vector<std::string> chain;
  for (const auto& part : real_folder) {
    const std::string name = part.string();
    if (!chain.empty() || (name.starts_with("pci") && name.find(':') != std::string::npos)) chain.push_back(name);
  }
  return chain;
}

std::vector<std::uint8_t> read_bytes(const fs::path& file) {
  const std::string bytes = file_text_or_empty(file.string());  // a device that is gone gives EIO
  return {bytes.begin(), bytes.end()};
}

unsigned count_virtual_functions(const fs::path& folder) {
  const auto count = read_integer(folder / "sriov_numvfs");
  return count && *count > 0 ? static_cast<unsigned>(*count) : 0;
}

pci_device read_device(const std::string& address, const fs::path& folder, const std::string& sysfs_root) {
  pci_device out;
  out.address = address;
  out.folder = folder.string();
  out.chain = chain_of(folder);
  out.class_code = read_number(folder / "class");
  out.vendor = read_number(folder / "vendor");
  out.device = read_number(folder / "device");
  out.numa_node = static_cast<int>(read_integer(folder / "numa_node").value_or(-1));
  out.local_cpus = read_text(folder / "local_cpulist").value_or("");
  out.link_now = read_link(folder, "current");
  out.link_max = read_link(folder, "max");
  out.physical_function = link_target_name(folder / "physfn").value_or("");
  out.virtual_functions = count_virtual_functions(folder);
  if (const auto group = link_target_name(folder / "iommu_group")) {
    out.iommu_group = static_cast<int>(leading_integer(*group).value_or(-1));
    out.iommu_type = read_text(fs::path(sysfs_root) / "kernel/iommu_groups" / *group / "type").value_or("");
  }
  const auto config = read_bytes(folder / "config");
  out.control = parse_pcie_control(config);
  out.acs = parse_acs(config);
  if (out.is_nvidia_gpu()) out.bar1_bytes = bar1_size_bytes(address, sysfs_root).value_or(0);
  return out;
}

}  // namespace

double parse_link_speed(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return end != text.c_str() && std::string(end).find("GT/s") != std::string::npos ? value : 0;
}

bool is_pci_address(const std::string& text) {
  const auto first = text.find(':'), second = text.find(':', first + 1), dot = text.find('.');
  if (first == std::string::npos || second != first + 3 || dot != second + 3 || dot + 2 != text.size() || first < 4)
    return false;
  return std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return std::isxdigit(c) != 0 || c == ':' || c == '.'; });
}

std::string sysfs_address(std::string bus_id) {
  std::transform(bus_id.begin(), bus_id.end(), bus_id.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto domain_end = bus_id.find(':');
  if (domain_end != std::string::npos && domain_end > 4) {
    const auto spare = std::min(bus_id.find_first_not_of('0'), domain_end - 4);
    bus_id.erase(0, spare);
  }
  return bus_id;
}

pci_tree pci_tree::read(const std::string& sysfs_root) {
  pci_tree tree;
  const fs::path list = fs::path(sysfs_root) / "bus/pci/devices";
  for (const auto& address : sorted_names(list)) {
    std::error_code problem;
    const fs::path folder = fs::canonical(list / address, problem);
    if (!problem && is_pci_address(address)) tree.devices_.push_back(read_device(address, folder, sysfs_root));
  }
  std::sort(tree.devices_.begin(), tree.devices_.end(),
            [](const pci_device& a, const pci_device& b) { return a.address < b.address; });
  return tree;
}

const pci_device* pci_tree::find(const std::string& address) const {
  const auto found = std::lower_bound(devices_.begin(), devices_.end(), address,
                                      [](const pci_device& one, const std::string& wanted) { return one.address < wanted; });
  return found != devices_.end() && found->address == address ? &*found : nullptr;
}

std::vector<const pci_device*> pci_tree::bridges_above(const pci_device& device) const {
  std::vector<const pci_device*> out;
  for (std::size_t i = device.chain.size(); i-- > 1;)
    if (device.chain[i] != device.address)
      if (const pci_device* bridge = find(device.chain[i])) out.push_back(bridge);
  return out;
}

std::vector<const pci_device*> pci_tree::links_above(const pci_device& device) const {
  std::vector<const pci_device*> out{&device};
  const auto bridges = bridges_above(device);
  // The nearest bridge is the other end of the device's link; the next is the port by which that switch is connected.
  for (std::size_t i = 1; i + 1 < bridges.size(); i += 2) out.push_back(bridges[i]);
  return out;
}

link_rate pci_tree::narrowest_link(const pci_device& device) const {
  link_rate out;
  for (const auto* one : links_above(device)) {
    const auto& now = one->link_now;
    if (now.is_known() && (!out.is_known() || now.gt_per_s * now.width < out.gt_per_s * out.width)) out = now;
  }
  return out;
}

void pci_tree::add(pci_device device) {
  const auto found = std::lower_bound(devices_.begin(), devices_.end(), device.address,
                                      [](const pci_device& one, const std::string& wanted) { return one.address < wanted; });
  if (found == devices_.end() || found->address != device.address) devices_.insert(found, std::move(device));
}

}  // namespace pl::tools::topo
