// SPDX-License-Identifier: Apache-2.0
// The few facts that only the management library knows: BAR1 in use, PCIe link, clocks, MIG. Opened with dlopen; absent on
// many container images, so every answer is optional.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

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

// One device of NVML, found by PCI bus id. Const calls from any thread.
class nvml_device {
 public:
  // Nothing without the library, the device, or on a simulated GPU's bus id; `why_not` (may be null) gets the reason.
  static std::optional<nvml_device> open(const std::string& bus_id, std::string* why_not);

  std::optional<bar1_use> bar1() const;
  std::optional<pcie_link> link() const;
  std::optional<gpu_clocks> clocks() const;
  std::optional<bool> mig_enabled() const;

 private:
  explicit nvml_device(void* handle) : handle_(handle) {}
  void* handle_;
};

}  // namespace pl::tools
