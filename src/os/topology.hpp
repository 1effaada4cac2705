// SPDX-License-Identifier: Apache-2.0
// Which CPUs are near a GPU. Programs only; the libraries do not link this (hwloc).
//
// A CPU copy through BAR1 crosses the socket interconnect when it runs on the far socket: writes lose some per cent,
// reads a few hundred nanoseconds each. So every benchmark pins its thread near the GPU unless told otherwise.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.hpp"
#include "os/cpu_list.hpp"

namespace pl {

struct device_locality {
  bool known = false;  // false: a simulated device, or the machine does not report it; cpus then has all allowed ones
  int numa_node = -1;  // operating system's number, -1 when not known
  cpu_numbers cpus;    // CPUs near the device that this process may use; never empty
  std::string remark;  // why it is unknown, or why cpus are not the local ones; empty if all is well
};

// The machine as hwloc sees it. Loading reads sysfs once (tens of milliseconds). Const calls are thread-safe.
class topology {
 public:
  // `sysfs_root` is where PCI devices are looked up: another one in tests only.
  static result<topology> load(std::string sysfs_root = "/sys");

  // `bus_id` as the CUDA driver gives it, "0000:fe:00.0" in any case, 4 or 8 domain digits.
  device_locality near_pci_device(std::string_view bus_id) const;

  // CPUs that this process may run on (cgroup and affinity at load time).
  const cpu_numbers& allowed_cpus() const;
  int numa_node_count() const;

  topology(topology&&) noexcept;
  topology& operator=(topology&&) noexcept;
  ~topology();

 private:
  struct state;
  explicit topology(std::unique_ptr<state> loaded);
  std::unique_ptr<state> state_;
};

}  // namespace pl
