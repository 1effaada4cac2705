// SPDX-License-Identifier: Apache-2.0
// Is the number good? An expected rate from what the links are, and a verdict with a reason.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/bandwidth/transfer_spec.hpp"

namespace pl::bandwidth {

// The measured path, as far as the model needs it.
struct transfer_path {
  enum class quantity { bandwidth, latency } measured_quantity = quantity::bandwidth;
  place source, destination;
  bandwidth::executor executor;
  std::uint64_t bytes = 0;  // of one copy
  unsigned same_direction =
      1;                      // transfers that share the narrowest link in this direction (all GPUs behind one switch, ...)
  unsigned gpus_at_host = 1;  // GPUs that move data from or to this host's memory at the same time
  bool opposite_too = false;  // the other direction is busy at the same time
  bool is_sum_of_both = false;  // the value is the sum of both directions
  bool is_local_copy = false;   // counted once, though memory is read and written
};

// One GPU's links, as the machine states them now. Zero or empty: not known.
struct gpu_link_facts {
  std::string name, bus_id;
  unsigned pcie_generation_now = 0, pcie_width_now = 0, pcie_generation_max = 0, pcie_width_max = 0;
  std::uint64_t pcie_replays = 0;                    // NVML's counter
  std::uint64_t pcie_corrected = 0;                  // corrected errors, by the kernel's AER counters
  unsigned pcie_payload_bytes = 0;                   // maximum payload of a packet
  unsigned uplink_generation = 0, uplink_width = 0;  // narrowest link between the GPU's own and the root
  std::string uplink_bus_id;                         // the bridge that has it; equal for GPUs that share it
  unsigned nvlink_version = 0, nvlinks_active = 0, nvlinks_total = 0;
  unsigned nvlink_mbps_each = 0;           // one direction, of one link, in MB/s
  std::map<int, unsigned> nvlinks_to_gpu;  // direct links; empty with a switch
  bool has_nvswitch = false;
  unsigned memory_bus_bits = 0, memory_clock_mhz = 0, memory_clock_max_mhz = 0;
  unsigned sm_clock_mhz = 0, sm_clock_max_mhz = 0;
  std::uint64_t throttle_reasons = 0;  // NVML's bits
  std::uint64_t ecc_uncorrected = 0;
  std::uint64_t bar1_bytes = 0, memory_bytes = 0, l2_bytes = 0;
  bool coherent_host = false;  // host memory is reached over NVLink-C2C, not PCIe
  int numa_node = -1;
  bool behind_iommu = false, acs_redirect = false;
  unsigned other_processes = 0;  // that use this GPU
};

struct machine_links {
  std::vector<gpu_link_facts> gpus;  // by CUDA ordinal
  int numa_nodes = 1;
  bool simulated = false;
  bool has_rates = true;             // false: a simulated GPU without PEERLANE_SIM_RATES; nothing to judge
  std::vector<std::string> remarks;  // what could not be read, and why
};

struct expectation {
  double value = 0;        // GB/s or ns
  double limit = 0;        // raw rate of the narrowest link, before protocol overhead; 0 for latencies
  std::string limited_by;  // "PCIe 5.0 x16", "NVLink 4 x 18", "HBM3 5120 bit 2619 MHz", "one CPU thread's stores"
  std::string source;      // where the efficiency comes from: the cited table's line
};

enum class verdict_level { good, low, suspicious };
const char* to_string(verdict_level level);

struct verdict {
  verdict_level level = verdict_level::good;
  double ratio = 0;    // value / expected (inverted for latencies: expected / value)
  std::string reason;  // for low and suspicious: what is the matter, from the evidence; and what to do
  bool is_varied =
      false;  // suspicious because the samples vary, and nothing of the link explains it: no verdict on the link
};

// Reads NVML, sysfs and the CUDA driver; never fails (what is not known stays zero, `remarks` say why).
// Called before a run and after it: the differences of counters are evidence.
class gpu_set;
machine_links read_links(gpu_set& gpus);

// Nothing where the model has no basis (facts unknown, sizes where start-up dominates and no table line applies).
std::optional<expectation> expect(const machine_links& links, const transfer_path& path);

// What else is known of one measurement.
struct measurement_context {
  const machine_links* before = nullptr;
  const machine_links* after = nullptr;  // may be null
  int host_node = -1;                    // that really held the host memory
  double coefficient_of_variation = 0;
  unsigned attempts = 1;  // how often it was measured
};
struct thresholds {
  double good = 0.85;        // of the expectation
  double suspicious = 0.60;  // below this a reason must be found, else "unexplained"
};
verdict judge(double value, const expectation& expected, const transfer_path& path, const measurement_context& known,
              const thresholds& limits = {});

}  // namespace pl::bandwidth
