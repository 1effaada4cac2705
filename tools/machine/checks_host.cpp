// SPDX-License-Identifier: Apache-2.0
// Checks of what the host allows: ports, GPUDirect RDMA, BAR1, limits, shared memory.
#include <algorithm>
#include <limits>

#include "base/text.hpp"
#include "tools/machine/checks.hpp"

namespace pl::tools::topo {
namespace {

constexpr std::uint64_t kMiB = 1ull << 20;
// Queues and bounce buffers of verbs are some tens of MiB for each process.
constexpr std::uint64_t kMinMemlock = 64 * kMiB;
// A container's default is 64 MiB, with which the shared-memory transports of MPI, UCX and NCCL end with SIGBUS.
constexpr std::uint64_t kMinShm = 1024 * kMiB;
constexpr std::uint64_t kUnusableShm = 64 * kMiB;

void check_memlock(const machine& all, std::vector<finding>& out) {
  const auto limit = all.host.memlock_bytes;
  if (!limit || all.hcas.empty()) return;
  if (*limit >= kMinMemlock)
    return add_finding(out, severity::ok, "memlock",
                       *limit == std::numeric_limits<std::uint64_t>::max()
                           ? "memory may be locked without limit"
                           : "up to " + format_size(*limit) + " may be locked");
  add_finding(out, severity::blocker, "memlock",
              "only " + format_size(*limit) + " may be locked: verbs cannot register their queues and buffers",
              "ulimit -l unlimited (/etc/security/limits.conf, LimitMEMLOCK=infinity of the unit, --ulimit memlock=-1 of a "
              "container)");
}

void check_shm(const machine& all, std::vector<finding>& out) {
  const auto bytes = all.host.shm_bytes;
  if (!bytes) return;
  if (*bytes >= kMinShm)
    return add_finding(out, severity::ok, "/dev/shm", format("%llu MiB", static_cast<unsigned long long>(*bytes / kMiB)));
  add_finding(out, *bytes <= kUnusableShm ? severity::blocker : severity::note, "/dev/shm",
              format("%llu MiB is little for the shared-memory transports of MPI, UCX and NCCL",
                     static_cast<unsigned long long>(*bytes / kMiB)),
              "mount -o remount,size=8G /dev/shm as root; for a container --shm-size=8g or --ipc=host");
}

void check_cma(const machine& all, std::vector<finding>& out) {
  const auto& host = all.host;
  if (host.cma_works && !*host.cma_works)
    return add_finding(out, severity::note, "CMA",
                       "process_vm_readv is refused here: large messages between processes are copied twice",
                       "allow it (a container's seccomp profile, or --cap-add SYS_PTRACE), or tell Open MPI "
                       "btl_vader_single_copy_mechanism=none");
  if (!host.ptrace_scope) return;
  if (*host.ptrace_scope == 0)
    return add_finding(out, severity::ok, "CMA", "processes of one user may read each other's memory");
  add_finding(out, severity::note, "CMA",
              format("kernel.yama.ptrace_scope is %d: a process may not read the memory of one that is not its child",
                     *host.ptrace_scope),
              *host.ptrace_scope >= 3
                  ? "reboot with another setting: 3 cannot be taken back"
                  : "sysctl kernel.yama.ptrace_scope=0 as root; UCX and Open MPI fall back to two copies without");
}

}  // namespace

void check_ports(const machine& all, std::vector<finding>& out) {
  std::string down;
  bool has_active = false;
  for (const auto& one : all.hcas)
    for (const auto& port : one.ports) {
      has_active = has_active || port.is_active;
      if (!port.is_active)
        down += format("%s%s:%d (%s)", down.empty() ? "" : ", ", one.name.c_str(), port.number, port.state.c_str());
    }
  if (!down.empty())
    add_finding(
        out, has_active ? severity::note : severity::blocker, "HCA ports", "not active: " + down,
        "look at the cable and the switch; INIT on InfiniBand: no subnet manager runs (opensm); RoCE: ip link set up");
  else if (!all.hcas.empty()) add_finding(out, severity::ok, "HCA ports", "every port is active");
}

void check_gpudirect(const machine& all, std::vector<finding>& out) {
  const auto& host = all.host;
  if (all.hcas.empty() || all.gpus.empty() || all.is_simulated) return;
  if (host.has_peermem && has_dmabuf(host))
    return add_finding(out, severity::ok, "GPUDirect RDMA", "nvidia-peermem is loaded, and dma-buf is possible too");
  if (host.has_peermem) return add_finding(out, severity::ok, "GPUDirect RDMA", "nvidia-peermem is loaded");
  if (has_dmabuf(host))
    return add_finding(out, severity::ok, "GPUDirect RDMA", "by dma-buf: open kernel modules on kernel " + host.kernel);
  if (host.driver_version.empty())
    return add_finding(out, severity::note, "GPUDirect RDMA", "NVIDIA's kernel driver is not loaded",
                       "peerlane doctor looks for the cause");
  add_finding(out, severity::blocker, "GPUDirect RDMA",
              format("neither nvidia-peermem nor dma-buf: %s kernel modules on kernel %s",
                     host.is_driver_open ? "open" : "proprietary", host.kernel.c_str()),
              "modprobe nvidia-peermem as root, or use the open kernel modules (515 or newer) on Linux 5.12 or newer");
}

void check_bar1(const machine& all, std::vector<finding>& out) {
  std::string small;
  bool is_known = false;
  for (std::size_t i = 0; i < all.gpus.size(); ++i) {
    const auto bytes = all.device_of(all.gpus[i]).bar1_bytes;
    if (bytes == 0 || all.gpus[i].memory_bytes == 0) continue;
    is_known = true;
    if (bytes < all.gpus[i].memory_bytes)
      small +=
          format("%sGPU%zu %llu of %llu MiB", small.empty() ? "" : ", ", i, static_cast<unsigned long long>(bytes / kMiB),
                 static_cast<unsigned long long>(all.gpus[i].memory_bytes / kMiB));
  }
  if (!small.empty())
    add_finding(out, severity::note, "BAR1", "smaller than the GPU's memory: " + small,
                "Above 4G Decoding and Resizable BAR in the firmware; until then keep registered memory small");
  else if (is_known) add_finding(out, severity::ok, "BAR1", "as large as the memory of each GPU");
}

void check_limits(const machine& all, std::vector<finding>& out) {
  check_memlock(all, out);
  check_shm(all, out);
  check_cma(all, out);
}

void check_sharing(const machine& all, int ranks, std::vector<finding>& out) {
  if (all.gpus.empty() || ranks <= static_cast<int>(all.gpus.size())) return;
  add_finding(
      out, severity::note, "sharing",
      format("%d ranks share %s: their kernels take turns in time slices", ranks, plural(all.gpus.size(), "GPU").c_str()),
      "start NVIDIA's MPS (nvidia-cuda-mps-control -d), or as many ranks as GPUs");
}

void check_numa(const machine& all, std::vector<finding>& out) {
  if (all.nodes_with_cpus() < 2 || all.is_simulated) return;
  for (std::size_t i = 0; i < all.gpus.size(); ++i)
    if (all.device_of(all.gpus[i]).numa_node < 0)
      return add_finding(out, severity::note, "NUMA",
                         format("the machine has %d NUMA nodes, but the node of GPU%zu is unknown: SYS is a guess",
                                all.nodes_with_cpus(), i),
                         "update the firmware; in a virtual machine give the devices' node to the guest");
}

std::vector<finding> check(const machine& all, const std::vector<gpu_advice>& advice, int ranks) {
  std::vector<finding> out;
  for (std::size_t i = 0; i < advice.size(); ++i)
    if (advice[i].verdict == gpudirect::stage)
      add_finding(
          out, severity::note, "distance",
          format("GPU%zu has no HCA below its root complex (%s)", i, to_string(relation{advice[i].separation, 0}).c_str()),
          "stage its messages through host memory, or move the adapter to the GPU's socket");
  check_acs(all, out);
  check_iommu(all, out);
  check_links(all, out);
  check_adapter_settings(all, out);
  check_ports(all, out);
  check_gpudirect(all, out);
  check_bar1(all, out);
  check_limits(all, out);
  check_sharing(all, ranks, out);
  check_numa(all, out);
  return out;
}

}  // namespace pl::tools::topo
