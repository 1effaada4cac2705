// SPDX-License-Identifier: Apache-2.0
#include "tools/machine/live_gpus.hpp"

#include <algorithm>

#include "base/env.hpp"
#include "cuda/driver_table.hpp"
#include "measure/machine.hpp"
#include "tools/common/gpu_choice.hpp"
#include "tools/common/nvml.hpp"

namespace pl::tools::topo {
namespace {

// Ports with the same far end become one bundle. A far end that NVML does not classify, but whose bus id is a GPU's, is
// that GPU.
std::vector<nvlink_bundle> bundle(const std::vector<nvlink_port>& ports, const machine& all) {
  std::vector<nvlink_bundle> out;
  for (const auto& port : ports) {
    if (!port.is_active) continue;
    nvlink_bundle one;
    const std::string far = sysfs_address(port.remote_bus_id);
    const bool is_gpu = std::any_of(all.gpus.begin(), all.gpus.end(), [&](const gpu& each) { return each.address == far; });
    if (is_gpu) one.ends_at = nvlink_bundle::end::gpu, one.bus_id = far;
    else if (port.remote == nvlink_port::end::network_switch) one.ends_at = nvlink_bundle::end::network_switch;
    const auto same = std::find_if(out.begin(), out.end(), [&](const nvlink_bundle& each) {
      return each.ends_at == one.ends_at && each.bus_id == one.bus_id;
    });
    ++(same != out.end() ? *same : out.emplace_back(one)).count;
  }
  return out;
}

void add_simulated(const std::string& address, machine& all) {
  pci_device device;
  device.address = address;
  device.chain = {"pci" + address.substr(0, address.rfind(':')), address};  // a host bridge of its own
  device.class_code = 0x030200;
  device.vendor = 0x10de;
  all.tree.add(std::move(device));
  all.gpus.push_back({address, {}, 0});
}

void add_driver_facts(const cu::driver_table& cuda, machine& all) {
  int count = 0;
  cuda.cuDeviceGetCount(&count);
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    const std::string address = sysfs_address(pci_bus_id(cuda, ordinal));
    auto one = std::find_if(all.gpus.begin(), all.gpus.end(), [&](const gpu& each) { return each.address == address; });
    if (one == all.gpus.end()) {
      if (!cuda.is_simulated) continue;  // a GPU that this container's sysfs hides has no place in the tree
      add_simulated(address, all);
      one = all.gpus.end() - 1;
    }
    cu::device_t device = 0;
    std::size_t bytes = 0;
    if (cuda.cuDeviceGet(&device, ordinal) == 0 && cuda.cuDeviceTotalMem_v2(&bytes, device) == 0) one->memory_bytes = bytes;
  }
  std::sort(all.gpus.begin(), all.gpus.end(), [](const gpu& a, const gpu& b) { return a.address < b.address; });
}

}  // namespace

void add_live_gpus(machine& all) {
  const bool is_forced = env_read("PEERLANE_GPU").text == "sim";
  if (!all.gpus.empty() && !is_forced && !probe_real_gpu().usable) return;
  if (is_forced) all.gpus.clear();
  const auto kind = choose_gpu();
  if (!kind) return;
  const auto cuda = cu::driver();
  if (!cuda || !cu::initialize(**cuda)) return;
  all.is_simulated = *kind == gpu_kind::simulated;
  add_driver_facts(**cuda, all);
  for (auto& one : all.gpus)
    if (const auto nvml = nvml_device::open(one.address, nullptr)) one.nvlinks = bundle(nvml->nvlinks(), all);
}

}  // namespace pl::tools::topo
