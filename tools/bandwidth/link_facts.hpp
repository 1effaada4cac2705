// SPDX-License-Identifier: Apache-2.0
// What sysfs and NVML say about one GPU's links. Pure parts, so that tests can play any machine.
#pragma once

#include <string>
#include <vector>

#include "tools/bandwidth/judgement.hpp"
#include "tools/common/nvml.hpp"

namespace pl::bandwidth {

// "16.0 GT/s PCIe" -> 4; 0 for anything else ("Unknown").
unsigned generation_of_speed(const std::string& speed);

// Bits of the device control and ACS registers that matter, from the text of a device's config file (the first 64 bytes
// only, unless the reader is root).
unsigned payload_of_config(const std::string& config);   // bytes; 0: not readable
bool redirects_peers(const std::string& bridge_config);  // ACS sends packets between peers up to the root
// "TOTAL_ERR_COR 7" in aer_dev_correctable.
std::uint64_t corrected_errors_of(const std::string& aer_text);

// Fills what /sys/bus/pci knows about `facts.bus_id`: its link, the narrowest link above it, NUMA node, IOMMU, errors.
void read_sysfs(gpu_link_facts& facts, const std::string& sysfs_root = "/sys");
int count_numa_nodes(const std::string& sysfs_root = "/sys");  // 1 if unknown

// Applies what the ports report: how many, how fast, and to whom. `gpus` maps the bus ids of the other ends to
// ordinals.
void apply_nvlinks(gpu_link_facts& facts, const std::vector<tools::nvlink_port>& ports, unsigned mbps_each,
                   const std::vector<gpu_link_facts>& gpus);

// Two GPUs' bus ids are compared by domain, bus, slot: NVML writes eight domain digits and capitals, CUDA four.
bool is_same_device(const std::string& a, const std::string& b);

}  // namespace pl::bandwidth
