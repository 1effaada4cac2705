// SPDX-License-Identifier: Apache-2.0
// Writes a machine's recording: only listed items are let through.
#include <algorithm>
#include <cctype>
#include <limits>
#include <set>

#include "base/text.hpp"
#include "base/whole_file.hpp"
#include "tools/machine/recording.hpp"
#include "tools/machine/sysfs_text.hpp"

namespace pl::tools::topo {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAttributes[] = {"class",
                                       "vendor",
                                       "device",
                                       "numa_node",
                                       "local_cpulist",
                                       "current_link_speed",
                                       "current_link_width",
                                       "max_link_speed",
                                       "max_link_width",
                                       "sriov_numvfs"};

// The kernel's release up to its numbers: what distributors and sites append may be a name.
std::string numbers_of(const std::string& release) { return release.substr(0, release.find_first_not_of("0123456789.")); }

void put(std::string& out, const std::string& name, const std::string& value) { out += " | " + name + "=" + value; }

void put_file(std::string& out, const std::string& path, const std::string& value) {
  out += "file " + path + " = " + value + "\n";
}

void put_config(std::string& out, const std::string& folder) {
  const std::string text = file_text_or_empty(folder + "/config");
  const std::vector<std::uint8_t> bytes(text.begin(), text.end());
  const auto facts = extract_facts(bytes);
  if (!facts.is_readable) return;
  put(out, "config", "readable");
  if (facts.device_control) put(out, "config.device_control", format("0x%04x", *facts.device_control));
  if (facts.acs_bits) put(out, "config.acs", format("0x%04x", *facts.acs_bits));
}

std::string device_line(const machine& all, const pci_device& one) {
  std::string out = "device ";
  for (std::size_t i = 0; i < one.chain.size(); ++i) out += (i == 0 ? "" : "/") + one.chain[i];
  for (const char* name : kAttributes)
    if (const auto value = read_text(fs::path(one.folder) / name)) put(out, name, *value);
  if (!one.physical_function.empty()) put(out, "physfn", one.physical_function);
  if (one.iommu_group >= 0) put(out, "iommu_group", std::to_string(one.iommu_group));
  if (one.bar1_bytes != 0) put(out, "bar1_bytes", std::to_string(one.bar1_bytes));
  put_config(out, one.folder);
  for (std::size_t i = 0; i < all.hcas.size(); ++i) {
    if (all.hcas[i].address != one.address) continue;
    const std::string name = without_hardware_address(all.hcas[i].name, format("rdma%zu", i));
    for (const auto& port : all.hcas[i].ports) {
      const std::string folder = format("infiniband/%s/ports/%d/", name.c_str(), port.number);
      put(out, folder + "state", port.state);
      put(out, folder + "rate", port.rate);
      put(out, folder + "link_layer", port.link_layer);
    }
  }
  for (std::size_t i = 0; i < all.cards.size(); ++i)
    if (all.cards[i].address == one.address)
      put(out, "net/" + without_hardware_address(all.cards[i].name, format("net%zu", i)) + "/speed",
          std::to_string(all.cards[i].mbit_per_s));
  return out + "\n";
}

std::set<std::string> recorded_addresses(const machine& all) {
  std::set<std::string> out;
  const auto add = [&](const std::string& address) {
    const auto* device = all.tree.find(address);
    if (device == nullptr || device->folder.empty()) return;
    out.insert(address);
    for (const auto* bridge : all.tree.bridges_above(*device)) out.insert(bridge->address);
  };
  for (const auto& one : all.gpus) add(one.address);
  for (const auto& one : all.hcas) add(one.address);
  for (const auto& one : all.cards) add(one.address);
  return out;
}

std::string host_lines(const host_facts& host) {
  std::string out;
  put_file(out, "proc/sys/kernel/osrelease", numbers_of(host.kernel));
  if (!host.driver_version.empty())
    put_file(out, "proc/driver/nvidia/version",
             std::string("NVRM version: NVIDIA UNIX ") + (host.is_driver_open ? "Open Kernel Module " : "Kernel Module ") +
                 host.driver_version);
  if (host.has_peermem) put_file(out, "module/nvidia_peermem/initstate", "live");
  if (host.ptrace_scope) put_file(out, "proc/sys/kernel/yama/ptrace_scope", std::to_string(*host.ptrace_scope));
  if (host.memlock_bytes)
    put_file(out, "proc/self/limits",
             "Max locked memory " + (*host.memlock_bytes == std::numeric_limits<std::uint64_t>::max()
                                         ? std::string("unlimited")
                                         : std::to_string(*host.memlock_bytes)));
  if (host.shm_bytes) put_file(out, "peerlane/host/shm_bytes", std::to_string(*host.shm_bytes));
  if (host.cma_works) put_file(out, "peerlane/host/cma_works", *host.cma_works ? "1" : "0");
  put_file(out, "peerlane/host/virtual_machine", host.is_virtual_machine ? "1" : "0");
  return out;
}

std::string gpu_lines(const gpu& one) {
  std::string out;
  const std::string folder = "peerlane/gpu/" + one.address + "/";
  if (one.memory_bytes != 0) put_file(out, folder + "memory_bytes", std::to_string(one.memory_bytes));
  std::string links;
  for (const auto& bundle : one.nvlinks) {
    const char* end = bundle.ends_at == nvlink_bundle::end::network_switch ? "switch" : "unknown";
    links += format("%s%u %s", links.empty() ? "" : ", ", bundle.count,
                    bundle.ends_at == nvlink_bundle::end::gpu ? bundle.bus_id.c_str() : end);
  }
  if (!links.empty()) put_file(out, folder + "nvlinks", links);
  return out;
}

}  // namespace

std::string without_hardware_address(const std::string& name, const std::string& plain) {
  constexpr std::size_t kAddressDigits = 12;  // of a MAC; a GUID has 16
  std::size_t run = 0;
  for (const unsigned char c : name) {
    run = std::isxdigit(c) != 0 ? run + 1 : 0;
    if (run >= kAddressDigits) return plain;
  }
  return name;
}

std::string write_recording(const machine& all) {
  std::string out = std::string(kRecordingHeader) + "\n";
  out += host_lines(all.host);
  for (const auto& node : all.nodes) put_file(out, format("devices/system/node/node%d/cpulist", node.number), node.cpus);
  std::set<int> groups;
  for (const auto& address : recorded_addresses(all)) {
    const auto& device = *all.tree.find(address);
    out += device_line(all, device);
    if (!device.iommu_type.empty() && groups.insert(device.iommu_group).second)
      put_file(out, format("kernel/iommu_groups/%d/type", device.iommu_group), device.iommu_type);
  }
  for (const auto& one : all.gpus)
    if (const auto* device = all.tree.find(one.address); device != nullptr && !device->folder.empty()) out += gpu_lines(one);
  return out;
}

}  // namespace pl::tools::topo
