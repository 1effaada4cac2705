// SPDX-License-Identifier: Apache-2.0
// A machine as the topology tool sees it: PCI devices, the GPUs and network adapters among them, NUMA nodes, and what the
// host allows. Matrix, advice and checks are computed from this alone, so a recorded machine gives the
// same answers as a running one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/machine/host_facts.hpp"
#include "tools/machine/pci_tree.hpp"

namespace pl::tools::topo {

// NVLinks of one GPU that end at the same place.
struct nvlink_bundle {
  enum class end { gpu, network_switch, unknown };
  end ends_at = end::unknown;
  std::string bus_id;  // of the other GPU
  unsigned count = 0;
};

struct gpu {
  std::string address;
  std::vector<nvlink_bundle> nvlinks;
  std::uint64_t memory_bytes = 0;  // 0: not known
};

struct hca_port {
  int number = 1;
  bool is_active = false;
  std::string state;       // "4: ACTIVE"
  std::string rate;        // "400 Gb/sec (4X NDR)"
  std::string link_layer;  // "InfiniBand", "Ethernet" (RoCE)
  double gbit_per_s = 0;
};

// An RDMA device. NIC<n> in the matrix, as in nvidia-smi's.
struct hca {
  std::string name;  // "mlx5_0"
  std::string address;
  std::vector<hca_port> ports;
  const hca_port* active_port() const;
};

// A network card without RDMA. NET<n> in the matrix.
struct network_card {
  std::string name;  // "eth0"
  std::string address;
  long long mbit_per_s = 0;  // 0: not known or no link
};

struct numa_node {
  int number = 0;
  std::string cpus;  // empty: a node of memory alone (a Grace-Hopper's GPU memory)
};

struct machine {
  pci_tree tree;
  std::vector<gpu> gpus;  // in the order of their bus ids, as nvidia-smi counts
  std::vector<hca> hcas;
  std::vector<network_card> cards;
  std::vector<numa_node> nodes;
  host_facts host;
  bool is_simulated = false;  // the GPUs are; everything else is this machine's

  const pci_device& device_of(const gpu& one) const { return *tree.find(one.address); }
  const pci_device& device_of(const hca& one) const { return *tree.find(one.address); }
  const pci_device& device_of(const network_card& one) const { return *tree.find(one.address); }
  int nodes_with_cpus() const;
};

// Reads a machine below `sysfs_root`. "/sys" is this one; another root is a recorded machine (recording.hpp): what only
// the running machine could tell is then read from the recording.
machine read_machine(const std::string& sysfs_root);

}  // namespace pl::tools::topo
