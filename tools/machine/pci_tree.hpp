// SPDX-License-Identifier: Apache-2.0
// The PCI devices of a machine as sysfs shows them: where each hangs, how fast its link is, what is known of its settings.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/machine/pci_config.hpp"

namespace pl::tools::topo {

// Zero: not known, or not a PCI Express link (devices of a virtual machine).
struct link_rate {
  double gt_per_s = 0;
  unsigned width = 0;
  bool is_known() const { return gt_per_s > 0 && width > 0; }
};

struct pci_device {
  std::string address;             // "0000:1b:00.0"
  std::vector<std::string> chain;  // "pci0000:15" (the host bridge), the bridges, the device itself
  std::string folder;              // where its attributes are; empty for a simulated device
  unsigned class_code = 0;         // 0x030200: base class, subclass, programming interface
  unsigned vendor = 0, device = 0;
  int numa_node = -1;      // -1: the firmware does not say
  std::string local_cpus;  // "0-55,112-167"; empty: not known
  link_rate link_now, link_max;
  std::string physical_function;  // of a virtual function; else empty
  unsigned virtual_functions = 0;
  int iommu_group = -1;
  std::string iommu_type;  // "DMA", "DMA-FQ", "identity"; empty: no IOMMU, or an old kernel
  std::optional<pcie_control> control;
  std::optional<acs_control> acs;
  std::uint64_t bar1_bytes = 0;  // 0: not known

  bool is_bridge() const { return class_code >> 8 == 0x0604; }
  bool is_nvidia_gpu() const { return vendor == 0x10de && class_code >> 16 == 0x03; }
};

class pci_tree {
 public:
  // Reads <sysfs_root>/bus/pci/devices. A root without PCI gives an empty tree.
  static pci_tree read(const std::string& sysfs_root);

  const std::vector<pci_device>& devices() const { return devices_; }  // by address
  const pci_device* find(const std::string& address) const;
  // Bridges above the device, the nearest first.
  std::vector<const pci_device*> bridges_above(const pci_device& device) const;
  // The lower ends of the links from the device to the root complex: itself, then the upstream ports of the switches above.
  std::vector<const pci_device*> links_above(const pci_device& device) const;
  // The least bandwidth among those links; unknown if none of them reports it.
  link_rate narrowest_link(const pci_device& device) const;
  void add(pci_device device);

 private:
  std::vector<pci_device> devices_;
};

// "0000:1b:00.0": any case, 4 or more digits of the domain.
bool is_pci_address(const std::string& text);
// NVML and CUDA write 8 or 4 digits of the domain, in either case; sysfs 4, lower case.
std::string sysfs_address(std::string bus_id);

// "32.0 GT/s PCIe" -> 32; 0 for "Unknown".
double parse_link_speed(const std::string& text);

}  // namespace pl::tools::topo
