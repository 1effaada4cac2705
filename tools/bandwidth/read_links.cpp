// SPDX-License-Identifier: Apache-2.0
// read_links: every GPU of the set, asked through NVML, sysfs and the driver.
#include <algorithm>

#include "base/text.hpp"
#include "tools/bandwidth/gpu_set.hpp"
#include "tools/bandwidth/judgement.hpp"
#include "tools/bandwidth/link_facts.hpp"
#include "tools/bandwidth/simulated_topology.hpp"

namespace pl::bandwidth {
namespace {

constexpr int kMemoryBusBits = 37, kMemoryClockKhz = 36, kL2Bytes = 38;
constexpr int kHostPageTables = 100;  // the GPU walks the host's page tables: coherent, over NVLink-C2C

void query_driver(gpu_set& gpus, int gpu, gpu_link_facts& facts) {
  const auto positive = [&](int attribute_id) {
    return static_cast<unsigned>(std::max(gpus.attribute(gpu, attribute_id), 0));
  };
  facts.name = gpus.name(gpu);
  facts.bus_id = gpus.bus_id(gpu);
  facts.l2_bytes = positive(kL2Bytes);
  facts.memory_bus_bits = positive(kMemoryBusBits);
  facts.memory_clock_max_mhz = facts.memory_clock_mhz = positive(kMemoryClockKhz) / 1000;
  facts.coherent_host = gpus.attribute(gpu, kHostPageTables) == 1;
  std::size_t bytes = 0;
  cu::device_t device = 0;
  if (gpus.cuda().cuDeviceGet(&device, gpu) == 0 && gpus.cuda().cuDeviceTotalMem_v2(&bytes, device) == 0)
    facts.memory_bytes = bytes;
}

void read_nvml(const tools::nvml_device& nvml, gpu_link_facts& facts) {
  if (const auto link = nvml.link()) {
    facts.pcie_generation_now = link->generation_now, facts.pcie_width_now = link->width_now;
    facts.pcie_generation_max = link->generation_max, facts.pcie_width_max = link->width_max;
  }
  if (const auto now = nvml.clocks()) facts.sm_clock_mhz = now->sm_mhz, facts.memory_clock_mhz = now->memory_mhz;
  if (const auto most = nvml.max_clocks())
    facts.sm_clock_max_mhz = most->sm_mhz, facts.memory_clock_max_mhz = most->memory_mhz;
  if (const auto bits = nvml.memory_bus_bits()) facts.memory_bus_bits = *bits;
  if (const auto use = nvml.bar1()) facts.bar1_bytes = use->total_bytes;
  facts.pcie_replays = nvml.pcie_replays().value_or(0);
  facts.throttle_reasons = nvml.throttle_reasons().value_or(0);
  facts.ecc_uncorrected = nvml.ecc_uncorrected().value_or(0);
  facts.other_processes = nvml.other_processes().value_or(0);
}

}  // namespace

machine_links read_links(gpu_set& gpus) {
  machine_links out;
  out.simulated = gpus.simulated();
  out.gpus.resize(static_cast<std::size_t>(gpus.count()));
  for (int gpu = 0; gpu < gpus.count(); ++gpu) query_driver(gpus, gpu, out.gpus[static_cast<std::size_t>(gpu)]);
  for (int gpu = 0; gpu < gpus.count(); ++gpu) {
    auto& facts = out.gpus[static_cast<std::size_t>(gpu)];
    std::string why_not;
    if (const auto nvml = tools::nvml_device::open(facts.bus_id, &why_not)) {
      read_nvml(*nvml, facts);
      apply_nvlinks(facts, nvml->nvlinks(), nvml->nvlink_mbps().value_or(0), out.gpus);
    } else {
      out.remarks.push_back(format("GPU %d: links and clocks are not known: %s", gpu, why_not.c_str()));
    }
    if (!out.simulated) read_sysfs(facts);
    else facts.numa_node = simulated::node_of_gpu(gpu);
  }
  out.numa_nodes = out.simulated ? simulated::node_count() : count_numa_nodes();
  out.has_rates = !out.simulated || simulated::has_rates();
  if (!out.has_rates)
    out.remarks.push_back(
        "simulated GPU: rates are this CPU's and not judged; set PEERLANE_SIM_RATES for links with a speed");
  return out;
}

}  // namespace pl::bandwidth
