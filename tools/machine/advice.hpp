// SPDX-License-Identifier: Apache-2.0
// Which HCA, which CPUs and how many rails for each GPU, and the lines that say so to UCX, MVAPICH2, NCCL and mpirun.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/machine/relation.hpp"

namespace pl::tools::topo {

// Messages up to this go over one rail: splitting costs more than it gives.
inline constexpr unsigned kOneRailUpToBytes = 16 << 10;

// May an HCA read and write this GPU's memory itself?
enum class gpudirect {
  no_hca,
  good,     // below one host bridge, without crossing it
  usable,   // through one host bridge: reads may be slow
  stage,    // across host bridges or sockets: go through host memory
  measure,  // the distance says little here: a virtual machine, or a host bridge for each port
};

struct gpu_advice {
  std::vector<std::size_t> nearest;      // HCAs at the least distance with an active port and the highest rate, by index
  distance separation = distance::self;  // to them; meaningless without HCAs
  gpudirect verdict = gpudirect::no_hca;
  std::vector<std::size_t> assigned;  // of the nearest: what this GPU's rank shall use, when each GPU has one
  std::string cpus;                   // near CPUs; empty: not known
  int numa_node = -1;
};

std::vector<gpu_advice> advise(const machine& all);

// Whether every GPU and adapter is below its own host bridge (as on Arm servers); NODE is then as near as possible.
bool has_bridge_per_device(const machine& all);

// Sentences for people, one per GPU and then those about all.
std::vector<std::string> explain(const machine& all, const std::vector<gpu_advice>& advice);

// Text that can be copied into a shell or a job script.
struct ready_line {
  std::string stack;  // "UCX", "MVAPICH2", "NCCL", "Open MPI", "rankfile", "shell"
  int rank = -1;      // -1: for all ranks
  std::string text;
};
// `ranks` processes on this machine, rank r on GPU r modulo the number of GPUs.
std::vector<ready_line> ready_lines(const machine& all, const std::vector<gpu_advice>& advice, int ranks);

}  // namespace pl::tools::topo
