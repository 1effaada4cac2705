// SPDX-License-Identifier: Apache-2.0
#include "tools/machine/topo_machine.hpp"

#include <algorithm>
#include <cstdlib>

#include "tools/machine/recording.hpp"
#include "tools/machine/sysfs_text.hpp"

namespace pl::tools::topo {
namespace {

namespace fs = std::filesystem;

hca_port read_port(const fs::path& folder, int number) {
  hca_port out;
  out.number = number;
  out.state = read_text(folder / "state").value_or("unknown");
  out.is_active = out.state.find("ACTIVE") != std::string::npos;
  out.rate = read_text(folder / "rate").value_or("unknown");
  out.gbit_per_s = std::strtod(out.rate.c_str(), nullptr);
  out.link_layer = read_text(folder / "link_layer").value_or("unknown");
  return out;
}

void add_hcas(const pci_device& device, std::vector<hca>& out) {
  const fs::path folder = fs::path(device.folder) / "infiniband";
  for (const auto& name : sorted_names(folder)) {
    hca one{name, device.address, {}};
    for (const auto& port : sorted_names(folder / name / "ports"))
      one.ports.push_back(read_port(folder / name / "ports" / port, static_cast<int>(leading_integer(port).value_or(1))));
    out.push_back(std::move(one));
  }
}

// A network card's interfaces are below the device, those of a virtio card below its virtio<n>.
void add_cards(const pci_device& device, std::vector<network_card>& out) {
  std::vector<fs::path> folders{device.folder};
  for (const auto& name : sorted_names(device.folder))
    if (name.starts_with("virtio")) folders.push_back(fs::path(device.folder) / name);
  for (const auto& folder : folders)
    for (const auto& name : sorted_names(folder / "net")) {
      const auto speed = read_integer(folder / "net" / name / "speed").value_or(0);
      out.push_back({name, device.address, std::max(speed, 0LL)});
    }
}

std::vector<numa_node> read_nodes(const fs::path& folder) {
  std::vector<numa_node> out;
  for (const auto& name : sorted_names(folder)) {
    if (!name.starts_with("node")) continue;
    if (const auto number = leading_integer(name.substr(4)))
      out.push_back({static_cast<int>(*number), read_text(folder / name / "cpulist").value_or("")});
  }
  return out;
}

}  // namespace

const hca_port* hca::active_port() const {
  for (const auto& port : ports)
    if (port.is_active) return &port;
  return nullptr;
}

int machine::nodes_with_cpus() const {
  return static_cast<int>(std::count_if(nodes.begin(), nodes.end(), [](const numa_node& one) { return !one.cpus.empty(); }));
}

machine read_machine(const std::string& sysfs_root) {
  machine out;
  out.tree = pci_tree::read(sysfs_root);
  for (const auto& device : out.tree.devices()) {
    if (device.is_nvidia_gpu()) out.gpus.push_back({device.address, {}, 0});
    const auto hcas_before = out.hcas.size();
    add_hcas(device, out.hcas);
    if (out.hcas.size() == hcas_before) add_cards(device, out.cards);
  }
  std::stable_sort(out.hcas.begin(), out.hcas.end(),
                   [](const hca& a, const hca& b) { return natural_less(a.name, b.name); });
  out.nodes = read_nodes(fs::path(sysfs_root) / "devices/system/node");
  out.host = sysfs_root == "/sys" ? read_live_host() : read_recorded_host(sysfs_root);
  for (auto& one : out.gpus) read_recorded_gpu(sysfs_root, one);
  return out;
}

}  // namespace pl::tools::topo
