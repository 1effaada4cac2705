// SPDX-License-Identifier: Apache-2.0
#include "tools/machine/advice.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "base/text.hpp"

namespace pl::tools::topo {
namespace {

double rate_of(const hca& one) {
  const auto* port = one.active_port();
  return port != nullptr ? port->gbit_per_s : 0;
}

// Distances count even if no port is active; the check of ports reports that.
std::vector<std::size_t> candidates(const machine& all) {
  std::vector<std::size_t> active, every;
  for (std::size_t i = 0; i < all.hcas.size(); ++i) {
    every.push_back(i);
    if (all.hcas[i].active_port() != nullptr) active.push_back(i);
  }
  return active.empty() ? every : active;
}

void find_nearest(const machine& all, const gpu& one, gpu_advice& out) {
  const auto far = [&](std::size_t i) { return relate(all, all.device_of(one), all.device_of(all.hcas[i])).separation; };
  const auto usable = candidates(all);
  if (usable.empty()) return;
  out.separation = far(*std::min_element(usable.begin(), usable.end(), [&](auto a, auto b) { return far(a) < far(b); }));
  double best_rate = 0;
  for (const auto i : usable)
    if (far(i) == out.separation) best_rate = std::max(best_rate, rate_of(all.hcas[i]));
  for (const auto i : usable)
    if (far(i) == out.separation && rate_of(all.hcas[i]) >= best_rate) out.nearest.push_back(i);
}

gpudirect judge(const machine& all, const gpu_advice& one) {
  if (one.nearest.empty()) return gpudirect::no_hca;
  if (one.separation <= distance::several_bridges) return gpudirect::good;
  if (all.host.is_virtual_machine) return gpudirect::measure;
  if (one.separation == distance::host_bridge) return gpudirect::usable;
  if (one.separation == distance::between_bridges && has_bridge_per_device(all)) return gpudirect::measure;
  return gpudirect::stage;
}

// GPUs divide the nearest HCAs that they share: one each while there are enough, else several GPUs per HCA.
void assign(std::vector<gpu_advice>& advice) {
  std::map<std::vector<std::size_t>, std::vector<gpu_advice*>> groups;
  for (auto& one : advice)
    if (!one.nearest.empty()) groups[one.nearest].push_back(&one);
  for (auto& [hcas, gpus] : groups) {
    const std::size_t each = std::max<std::size_t>(1, hcas.size() / gpus.size());
    for (std::size_t i = 0; i < gpus.size(); ++i)
      for (std::size_t rail = 0; rail < each; ++rail) gpus[i]->assigned.push_back(hcas[(i * each + rail) % hcas.size()]);
  }
}

std::string names(const machine& all, const std::vector<std::size_t>& indices) {
  std::string out;
  for (const auto i : indices) out += (out.empty() ? "" : ", ") + all.hcas[i].name;
  return out;
}

std::string verdict_text(const machine& all, const gpu_advice& one) {
  switch (one.verdict) {
    case gpudirect::no_hca:
      return "no RDMA adapter: messages to other machines go through host memory";
    case gpudirect::good:
      return "same root complex, no host bridge in between: GPUDirect RDMA at every size";
    case gpudirect::usable:
      return "same root complex, through the host bridge: GPUDirect RDMA is advised, but let it read GPU memory for small "
             "messages only (MV2_GPUDIRECT_LIMIT=8192)";
    case gpudirect::measure:
      return all.host.is_virtual_machine
                 ? "the virtual machine hides the real bridges: measure with and without GPUDirect RDMA"
                 : "each port of this machine has a host bridge of its own, nothing is nearer: measure with and without "
                   "GPUDirect RDMA";
    case gpudirect::stage:
      return one.separation == distance::between_bridges
                 ? "WARNING not the same root complex: reads of GPU memory that cross host bridges collapse; stage "
                   "through host memory (UCX_IB_GPU_DIRECT_RDMA=n), or move the adapter"
                 : "WARNING on another NUMA node or socket: reads of GPU memory that cross the sockets' link collapse; "
                   "stage "
                   "through host memory (UCX_IB_GPU_DIRECT_RDMA=n), or use a slot of the GPU's socket";
  }
  return "";
}

}  // namespace

bool has_bridge_per_device(const machine& all) {
  std::set<std::string> seen;
  const auto is_new = [&](const pci_device& one) { return !one.chain.empty() && seen.insert(one.chain.front()).second; };
  std::size_t count = 0;
  for (const auto& one : all.gpus) {
    if (!is_new(all.device_of(one))) return false;
    ++count;
  }
  std::set<std::string> addresses;
  for (const auto& one : all.hcas) {
    const auto& device = all.device_of(one);
    // Functions of one adapter share its port.
    if (!addresses.insert(device.address.substr(0, device.address.find('.'))).second) continue;
    if (!is_new(device)) return false;
    ++count;
  }
  return count >= 2;
}

std::vector<gpu_advice> advise(const machine& all) {
  std::vector<gpu_advice> out;
  for (const auto& one : all.gpus) {
    gpu_advice advice;
    find_nearest(all, one, advice);
    advice.verdict = judge(all, advice);
    advice.cpus = all.device_of(one).local_cpus;
    advice.numa_node = all.device_of(one).numa_node;
    out.push_back(std::move(advice));
  }
  assign(out);
  return out;
}

std::vector<std::string> explain(const machine& all, const std::vector<gpu_advice>& advice) {
  std::vector<std::string> out;
  bool has_several = false;
  for (std::size_t i = 0; i < advice.size(); ++i) {
    const auto& one = advice[i];
    std::string line = format("GPU%zu: ", i);
    if (!one.nearest.empty())
      line += "nearest HCA " + names(all, one.nearest) + " (" + to_string(relation{one.separation, 0}) + ")" +
              (one.assigned == one.nearest ? "" : ", takes " + names(all, one.assigned)) + "; ";
    line += verdict_text(all, one);
    line += one.cpus.empty() ? "; near CPUs are not known" : "; bind its process to CPUs " + one.cpus;
    out.push_back(std::move(line));
    has_several = has_several || one.assigned.size() > 1;
  }
  if (all.hcas.empty() || advice.empty()) return out;
  out.push_back(format("rails: messages up to %u KiB over one rail; above, stripe over rails of equal distance only",
                       kOneRailUpToBytes >> 10));
  out.push_back(
      has_several ? "rails: some GPUs have several HCAs at the same distance to themselves: stripe large messages over those"
                  : "rails: with one process for each GPU a fixed mapping to its HCA, and no striping");
  return out;
}

}  // namespace pl::tools::topo
