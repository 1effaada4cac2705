// SPDX-License-Identifier: Apache-2.0
// Facts that only NVML has: BAR1 use, links, clocks, errors, other processes. NVML is opened with dlopen. Many container
// images lack it, so every answer is optional.
//
// Beside a simulated GPU (sim/libcuda.so.1) it is the simulated library of the same folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pl::tools {

struct bar1_use {
  std::uint64_t total_bytes = 0;
  std::uint64_t used_bytes = 0;
};

struct pcie_link {
  unsigned generation_now = 0, width_now = 0;  // an idle GPU trains its link down: now is not the limit
  unsigned generation_max = 0, width_max = 0;
};

struct gpu_clocks {
  unsigned sm_mhz = 0;
  unsigned memory_mhz = 0;
};

struct nvlink_port {
  bool is_active = false;
  unsigned version = 0;  // NVML's number for it
  enum class end { unknown, gpu, network_switch } remote = end::unknown;
  std::string remote_bus_id;  // empty if not known
};

// Confidential computing is on, as NVML says; nothing where it does not know the question. Libcuda must be loaded.
std::optional<bool> is_confidential();

// One device of NVML, found by PCI bus id. Const calls from any thread.
class nvml_device {
 public:
  // Nothing without the library or the device; `why_not` (may be null) gets the reason.
  static std::optional<nvml_device> open(const std::string& bus_id, std::string* why_not);

  std::optional<bar1_use> bar1() const;
  std::optional<pcie_link> link() const;
  std::optional<gpu_clocks> clocks() const;
  std::optional<gpu_clocks> max_clocks() const;
  std::optional<bool> mig_enabled() const;

  std::optional<unsigned> pcie_replays() const;  // since the driver was loaded
  std::vector<nvlink_port> nvlinks() const;      // of every link that the board has; empty without NVLink
  std::optional<unsigned> nvlink_mbps() const;   // MB/s of one active link in one direction
  std::optional<unsigned> memory_bus_bits() const;
  std::optional<std::uint64_t> throttle_reasons() const;  // nvml::throttle bits
  std::optional<std::uint64_t> ecc_uncorrected() const;   // since the driver was loaded
  struct memory_repairs {                                 // rows that were replaced by spare ones
    unsigned corrected = 0, uncorrected = 0;
    bool is_pending = false;  // a reset is needed before they are in force
    bool has_failed = false;  // no spare row was left
  };
  std::optional<memory_repairs> repairs() const;
  std::optional<unsigned> other_processes() const;  // compute processes but this one

 private:
  explicit nvml_device(void* handle) : handle_(handle) {}
  void* handle_;
};

}  // namespace pl::tools
