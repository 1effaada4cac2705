// SPDX-License-Identifier: Apache-2.0
#include "tools/machine/relation.hpp"

#include <algorithm>

#include "base/text.hpp"

namespace pl::tools::topo {
namespace {

std::size_t common_length(const std::vector<std::string>& left, const std::vector<std::string>& right) {
  const auto ends = std::mismatch(left.begin(), left.end(), right.begin(), right.end());
  return static_cast<std::size_t>(ends.first - left.begin());
}

unsigned count_links(const gpu& source, nvlink_bundle::end end, const std::string& bus_id = "") {
  unsigned out = 0;
  for (const auto& bundle : source.nvlinks)
    if (bundle.ends_at == end && bundle.bus_id == bus_id) out += bundle.count;
  return out;
}

// Bridges with a device of their own between the deepest common one and the device.
std::size_t bridges_below(std::size_t common, const std::vector<std::string>& chain) {
  return chain.size() > common ? chain.size() - common - 1 : 0;
}

}  // namespace

std::string to_string(const relation& one) {
  switch (one.separation) {
    case distance::self:
      return "X";
    case distance::nvlink:
      return format("NV%u", one.nvlinks);
    case distance::one_bridge:
      return "PIX";
    case distance::several_bridges:
      return "PXB";
    case distance::host_bridge:
      return "PHB";
    case distance::between_bridges:
      return "NODE";
    case distance::between_numa_nodes:
      return "SYS";
  }
  return "";
}

distance pci_distance(const pci_device& left, const pci_device& right, bool single_node) {
  if (left.address == right.address) return distance::self;
  const auto common = common_length(left.chain, right.chain);
  if (common >= 2) {
    const auto most = std::max(bridges_below(common, left.chain), bridges_below(common, right.chain));
    // One port of a switch on each side is one switch, which nvidia-smi counts as one bridge.
    return most <= 1 ? distance::one_bridge : distance::several_bridges;
  }
  if (common == 1) return distance::host_bridge;
  if (single_node || (left.numa_node >= 0 && left.numa_node == right.numa_node)) return distance::between_bridges;
  return distance::between_numa_nodes;
}

unsigned nvlinks_between(const gpu& left, const gpu& right) {
  using end = nvlink_bundle::end;
  const unsigned direct = std::max(count_links(left, end::gpu, right.address), count_links(right, end::gpu, left.address));
  if (direct != 0) return direct;
  // In a virtual machine NVML may not say where links end; links of both GPUs that end nowhere in sight end at switches.
  const auto to_switches = [](const gpu& one) {
    return count_links(one, end::network_switch) + count_links(one, end::unknown);
  };
  return std::min(to_switches(left), to_switches(right));
}

relation relate(const machine& all, const pci_device& left, const pci_device& right) {
  return {pci_distance(left, right, all.nodes_with_cpus() <= 1), 0};
}

relation relate(const machine& all, const gpu& left, const gpu& right) {
  if (left.address != right.address)
    if (const unsigned links = nvlinks_between(left, right)) return {distance::nvlink, links};
  return relate(all, all.device_of(left), all.device_of(right));
}

relation_matrix relate_all(const machine& all) {
  relation_matrix out;
  const auto add = [&](const char* kind, std::size_t number, const std::string& name, const pci_device& device,
                       const gpu* one) {
    out.endpoints.push_back({kind + std::to_string(number), name, &device, one});
  };
  for (std::size_t i = 0; i < all.gpus.size(); ++i)
    add("GPU", i, all.gpus[i].address, all.device_of(all.gpus[i]), &all.gpus[i]);
  for (std::size_t i = 0; i < all.hcas.size(); ++i) add("NIC", i, all.hcas[i].name, all.device_of(all.hcas[i]), nullptr);
  for (std::size_t i = 0; i < all.cards.size(); ++i) add("NET", i, all.cards[i].name, all.device_of(all.cards[i]), nullptr);
  for (const auto& row : out.endpoints) {
    std::vector<relation> cells;
    for (const auto& column : out.endpoints)
      cells.push_back(row.as_gpu != nullptr && column.as_gpu != nullptr ? relate(all, *row.as_gpu, *column.as_gpu)
                                                                        : relate(all, *row.device, *column.device));
    out.cells.push_back(std::move(cells));
  }
  return out;
}

}  // namespace pl::tools::topo
