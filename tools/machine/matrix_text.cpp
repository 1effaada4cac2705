// SPDX-License-Identifier: Apache-2.0
// The matrix in the form of `nvidia-smi topo -m`: the same columns, words and legend, so that readers and scripts of that
// one can use it.
#include "base/text.hpp"
#include "tools/machine/relation.hpp"

namespace pl::tools::topo {
namespace {

constexpr const char* kLegend =
    "Legend:\n\n"
    "  X    = Self\n"
    "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)\n"
    "  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node\n"
    "  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)\n"
    "  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)\n"
    "  PIX  = Connection traversing at most a single PCIe bridge\n"
    "  NV#  = Connection traversing a bonded set of # NVLinks\n";

std::string numa_text(const pci_device& device) { return device.numa_node < 0 ? "N/A" : std::to_string(device.numa_node); }

std::string name_list(const relation_matrix& matrix, const std::string& kind, const std::string& title) {
  std::string out;
  for (const auto& one : matrix.endpoints)
    if (one.label.starts_with(kind)) out += format("  %s: %s\n", one.label.c_str(), one.name.c_str());
  return out.empty() ? "" : "\n" + title + "\n\n" + out;
}

}  // namespace

std::string render(const relation_matrix& matrix) {
  std::string out;
  for (const auto& column : matrix.endpoints) out += "\t" + column.label;
  out += "\tCPU Affinity\tNUMA Affinity\n";
  for (std::size_t row = 0; row < matrix.endpoints.size(); ++row) {
    const auto& one = matrix.endpoints[row];
    out += one.label;
    for (const auto& cell : matrix.cells[row]) out += cell.separation == distance::self ? "\t X " : "\t" + to_string(cell);
    const std::string cpus = one.device->local_cpus.empty() ? "N/A" : one.device->local_cpus;
    out += "\t" + cpus + "\t" + numa_text(*one.device) + "\n";
  }
  out += "\n" + std::string(kLegend);
  out += name_list(matrix, "NIC", "NIC Legend:");
  out += name_list(matrix, "NET", "Network cards without RDMA:");
  return out;
}

}  // namespace pl::tools::topo
