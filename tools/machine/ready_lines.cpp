// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>

#include "base/text.hpp"
#include "tools/machine/advice.hpp"

namespace pl::tools::topo {
namespace {

std::string port_text(const hca& one) {
  const auto* port = one.active_port();
  return format("%s:%d", one.name.c_str(), port != nullptr ? port->number : 1);
}

std::string port_list(const machine& all, const std::vector<std::size_t>& hcas) {
  std::string out;
  for (const auto i : hcas) out += (out.empty() ? "" : ",") + port_text(all.hcas[i]);
  return out;
}

const gpu_advice& advice_of_rank(const std::vector<gpu_advice>& advice, int rank) {
  return advice[static_cast<std::size_t>(rank) % advice.size()];
}

void add_ucx(const machine& all, const std::vector<gpu_advice>& advice, int ranks, std::vector<ready_line>& out) {
  for (int rank = 0; rank < ranks; ++rank) {
    const auto& one = advice_of_rank(advice, rank);
    std::string text = format("UCX_NET_DEVICES=%s UCX_MAX_RNDV_RAILS=%zu UCX_MAX_EAGER_RAILS=1",
                              port_list(all, one.assigned).c_str(), one.assigned.size());
    if (one.assigned.size() > 1) text += format(" UCX_MIN_RNDV_CHUNK_SIZE=%uk", kOneRailUpToBytes >> 10);
    if (one.verdict == gpudirect::stage) text += " UCX_IB_GPU_DIRECT_RDMA=n";
    out.push_back({"UCX", rank, std::move(text)});
  }
}

// One HCA for each local rank. MVAPICH2 cannot give a rank two of its own, so that striping needs the other policy.
void add_mvapich2(const machine& all, const std::vector<gpu_advice>& advice, int ranks, std::vector<ready_line>& out) {
  std::string mapping;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto& one = all.hcas[advice_of_rank(advice, rank).assigned.front()];
    mapping += (mapping.empty() ? "" : ":") + one.name;
  }
  out.push_back({"MVAPICH2", -1,
                 format("MV2_PROCESS_TO_RAIL_MAPPING=%s MV2_RAIL_SHARING_POLICY=FIXED_MAPPING "
                        "MV2_RAIL_SHARING_LARGE_MSG_THRESHOLD=1G",
                        mapping.c_str())});
}

// The leading "=" asks for whole names: without it mlx5_1 means mlx5_10 and mlx5_11 too.
void add_nccl(const machine& all, const std::vector<gpu_advice>& advice, std::vector<ready_line>& out) {
  std::set<std::size_t> used;
  for (const auto& one : advice) used.insert(one.assigned.begin(), one.assigned.end());
  const std::string list = port_list(all, {used.begin(), used.end()});
  out.push_back({"NCCL", -1, "NCCL_IB_HCA==" + list});
}

// mpirun places ranks by NUMA node in turn; that is right only if the ranks' GPUs come in the same order.
std::string map_by_numa(const std::vector<gpu_advice>& advice, int ranks) {
  std::map<int, int> per_node;
  int last = -1;
  for (int rank = 0; rank < ranks; ++rank) {
    const int node = advice_of_rank(advice, rank).numa_node;
    if (node < last) return "";
    last = node;
    ++per_node[node];
  }
  const int each = per_node.begin()->second;
  const auto as_many = [each](const auto& entry) { return entry.second == each; };
  const bool has_gaps = per_node.begin()->first != 0 || static_cast<std::size_t>(last) + 1 != per_node.size();
  if (has_gaps || !std::all_of(per_node.begin(), per_node.end(), as_many)) return "";
  return format("mpirun -np %d --map-by ppr:%d:numa --bind-to numa", ranks, each);
}

void add_binding(const machine& all, const std::vector<gpu_advice>& advice, int ranks, std::vector<ready_line>& out) {
  const std::string by_numa = map_by_numa(advice, ranks);
  if (all.nodes_with_cpus() > 1)
    out.push_back(
        {"Open MPI", -1,
         !by_numa.empty() ? by_numa : format("mpirun -np %d --rankfile FILE --mca rmaps_rank_file_physical 1", ranks)});
  else out.push_back({"Open MPI", -1, format("mpirun -np %d --map-by core --bind-to core", ranks)});
  for (int rank = 0; rank < ranks; ++rank) {
    const auto& one = advice_of_rank(advice, rank);
    if (!one.cpus.empty()) out.push_back({"rankfile", rank, format("rank %d=+n0 slot=%s", rank, one.cpus.c_str())});
  }
  for (int rank = 0; rank < ranks; ++rank) {
    const auto& one = advice_of_rank(advice, rank);
    const std::string gpu_text =
        format("CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=%zu", static_cast<std::size_t>(rank) % advice.size());
    out.push_back({"shell", rank, gpu_text + (one.cpus.empty() ? "" : " taskset -c " + one.cpus)});
  }
}

}  // namespace

std::vector<ready_line> ready_lines(const machine& all, const std::vector<gpu_advice>& advice, int ranks) {
  std::vector<ready_line> out;
  if (advice.empty() || ranks < 1) return out;
  if (!all.hcas.empty()) {
    add_ucx(all, advice, ranks, out);
    add_mvapich2(all, advice, ranks, out);
    add_nccl(all, advice, out);
  }
  add_binding(all, advice, ranks, out);
  return out;
}

}  // namespace pl::tools::topo
