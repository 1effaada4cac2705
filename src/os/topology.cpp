// SPDX-License-Identifier: Apache-2.0
#include "os/topology.hpp"

#include <hwloc.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "base/text.hpp"
#include "os/cpu_list.hpp"

namespace pl {
namespace {

struct bitmap_free {
  void operator()(hwloc_bitmap_t bitmap) const { hwloc_bitmap_free(bitmap); }
};
using unique_bitmap = std::unique_ptr<hwloc_bitmap_s, bitmap_free>;

cpu_numbers to_numbers(hwloc_const_bitmap_t bitmap) {
  cpu_numbers out;
  for (int cpu = hwloc_bitmap_first(bitmap); cpu >= 0; cpu = hwloc_bitmap_next(bitmap, cpu))
    out.push_back(static_cast<unsigned>(cpu));
  return out;
}

std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// sysfs names devices "dddd:bb:dd.f" in lower case; NVML writes eight domain digits.
std::string sysfs_name(std::string_view bus_id) {
  std::string name;
  for (const char c : bus_id) name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (const auto colon = name.find(':'); colon == 8 && name.starts_with("0000")) name.erase(0, 4);
  return name;
}

// hwloc loads plugins (OpenCL, X11, NVML, ...) from the system's folder. They are slow, may start GPU drivers, and are
// built for the shared library of another version, so this process disables them. Children inherit the setting; they
// are this program.
void keep_plugins_out() { setenv("HWLOC_PLUGINS_PATH", "/nonexistent", 1); }

}  // namespace

struct topology::state {
  hwloc_topology_t handle = nullptr;
  std::string sysfs_root;
  cpu_numbers allowed;

  state() = default;
  state(const state&) = delete;
  state& operator=(const state&) = delete;
  ~state() {
    if (handle != nullptr) hwloc_topology_destroy(handle);
  }

  // The node whose CPUs cover all of `cpus`, or -1 if there is no single one.
  int node_of(const cpu_numbers& cpus) const {
    const unique_bitmap wanted(hwloc_bitmap_alloc());
    for (const unsigned cpu : cpus) hwloc_bitmap_set(wanted.get(), cpu);
    for (hwloc_obj_t node = nullptr; (node = hwloc_get_next_obj_by_type(handle, HWLOC_OBJ_NUMANODE, node)) != nullptr;)
      if (hwloc_bitmap_isincluded(wanted.get(), node->cpuset)) return static_cast<int>(node->os_index);
    return -1;
  }
};

topology::topology(std::unique_ptr<state> loaded) : state_(std::move(loaded)) {}
topology::topology(topology&&) noexcept = default;
topology& topology::operator=(topology&&) noexcept = default;
topology::~topology() = default;

result<topology> topology::load(std::string sysfs_root) {
  keep_plugins_out();
  // hwloc retries for ever if the answer is an error (seen with version 2.9 under a container's filter).
  if (cpus_of_this_thread().empty())
    return failure{EPERM,
                   "the kernel does not tell on which CPUs this process may run (sched_getaffinity): allow it in the "
                   "container's filter, or use --cpu none"};
  auto fresh = std::make_unique<state>();
  fresh->sysfs_root = std::move(sysfs_root);
  if (hwloc_topology_init(&fresh->handle) != 0) {
    fresh->handle = nullptr;
    return failure{ENOMEM, "hwloc_topology_init failed: cannot list the machine's CPUs; use --cpu none"};
  }
  if (hwloc_topology_load(fresh->handle) != 0)
    return failure{EIO, "hwloc cannot read the machine's topology from sysfs; use --cpu none"};
  // Affinity can be narrower than the cgroup: what the process may really use is the intersection.
  const unique_bitmap bound(hwloc_bitmap_alloc());
  hwloc_const_bitmap_t cgroup = hwloc_topology_get_allowed_cpuset(fresh->handle);
  if (hwloc_get_cpubind(fresh->handle, bound.get(), HWLOC_CPUBIND_PROCESS) != 0) hwloc_bitmap_copy(bound.get(), cgroup);
  hwloc_bitmap_and(bound.get(), bound.get(), cgroup);
  fresh->allowed = to_numbers(bound.get());
  if (fresh->allowed.empty()) fresh->allowed = to_numbers(cgroup);
  return topology(std::move(fresh));
}

const cpu_numbers& topology::allowed_cpus() const { return state_->allowed; }

int topology::numa_node_count() const { return hwloc_get_nbobjs_by_type(state_->handle, HWLOC_OBJ_NUMANODE); }

device_locality topology::near_pci_device(std::string_view bus_id) const {
  device_locality out;
  out.cpus = state_->allowed;
  const std::string folder = state_->sysfs_root + "/bus/pci/devices/" + sysfs_name(bus_id);
  const auto local = parse_cpu_list(read_line(folder + "/local_cpulist"));
  if (!local) {
    out.remark =
        format("no local_cpulist for PCI device %s in sysfs (a simulated or hidden device)", std::string(bus_id).c_str());
    return out;
  }
  out.known = true;
  if (const auto node = parse_integer(read_line(folder + "/numa_node")); node && *node >= 0)
    out.numa_node = static_cast<int>(*node);
  else out.numa_node = state_->node_of(*local);
  cpu_numbers usable;
  std::set_intersection(local->begin(), local->end(), state_->allowed.begin(), state_->allowed.end(),
                        std::back_inserter(usable));
  if (usable.empty())
    out.remark = format("the CPUs near %s (%s) are not open to this process: widen its cpuset", std::string(bus_id).c_str(),
                        format_cpu_list(*local).c_str());
  else out.cpus = std::move(usable);
  return out;
}

}  // namespace pl
