// SPDX-License-Identifier: Apache-2.0
// How two devices reach each other, in the words of `nvidia-smi topo -m`.
#pragma once

#include <string>
#include <vector>

#include "tools/machine/topo_machine.hpp"

namespace pl::tools::topo {

// From near to far; what is compared is this order.
enum class distance {
  self,                // X
  nvlink,              // NV#
  one_bridge,          // PIX
  several_bridges,     // PXB
  host_bridge,         // PHB
  between_bridges,     // NODE: two host bridges of one NUMA node
  between_numa_nodes,  // SYS
};

struct relation {
  distance separation = distance::self;
  unsigned nvlinks = 0;  // with distance::nvlink
  friend bool operator==(const relation&, const relation&) = default;
};

std::string to_string(const relation& one);  // "NV18", "PIX"

// By PCI alone. `single_node`: the machine has one NUMA node, so an unreported node can only be that one.
distance pci_distance(const pci_device& left, const pci_device& right, bool single_node);

// NVLinks that connect two GPUs: direct ones, or, when both are connected to switches, what the weaker one has there.
unsigned nvlinks_between(const gpu& left, const gpu& right);

relation relate(const machine& all, const gpu& left, const gpu& right);
relation relate(const machine& all, const pci_device& left, const pci_device& right);

// A row and column of the matrix.
struct endpoint {
  std::string label;  // "GPU0", "NIC3", "NET0"
  std::string name;   // "mlx5_3", "eth0"; a GPU's bus id
  const pci_device* device = nullptr;
  const gpu* as_gpu = nullptr;  // null: a network adapter
};

struct relation_matrix {
  std::vector<endpoint> endpoints;           // they point into the machine
  std::vector<std::vector<relation>> cells;  // [row][column]
};
relation_matrix relate_all(const machine& all);

// The layout and the legend of nvidia-smi.
std::string render(const relation_matrix& matrix);

}  // namespace pl::tools::topo
