// SPDX-License-Identifier: Apache-2.0
// The environment block of every result: what a reader must know to judge a number or to repeat it.
#pragma once

#include <string>

#include "cuda/driver_table.hpp"

namespace pl {

// Text fields are "unknown" where the machine does not say; numbers are -1.
struct machine_facts {
  std::string peerlane_version;
  std::string git_revision;  // of the build: `git describe --always --dirty`
  std::string utc_date;      // "2026-01-31T23:59:59Z"
  std::string kernel;        // "Linux 6.1.0-18-amd64 x86_64"
  std::string cpu_model;
  int cpu_count = -1;
  int cpu_clock_mhz = -1;  // of the first CPU now: a hint at frequency scaling, not a measurement
  std::string gpu_name = "unknown";
  std::string gpu_bus_id = "unknown";
  int gpu_count = -1;
  std::string driver_version = "unknown";  // kernel driver, "580.95.05"
  std::string driver_flavor = "unknown";   // "open" or "proprietary"
  int cuda_version = -1;                   // as cuDriverGetVersion: 13000 = CUDA 13.0
  bool simulated = false;                  // no timing is a GPU's

  // Filled by the program that knows them.
  std::string backend = "unknown";       // gdrdrv, dmabuf, rm
  std::string mapping_type = "unknown";  // as gdr_get_mapping_type_string
  std::string copy_to_device = "unknown";
  std::string copy_to_host = "unknown";
  std::string cpus = "unknown";  // CPUs the measuring thread may run on, "0-15"
  int gpu_sm_clock_mhz = -1;
  int gpu_memory_clock_mhz = -1;
};

extern const char* const kGitRevision;

// Everything that can be known without a GPU.
machine_facts describe_host();

// Adds what the CUDA driver says of device `ordinal`. The driver must be initialised.
void describe_gpu(machine_facts& facts, const cu::driver_table& cuda, int ordinal);

// "0000:fe:00.0" in lower case; empty if the driver does not tell.
std::string pci_bus_id(const cu::driver_table& cuda, int ordinal);

struct kernel_driver {
  std::string version = "unknown";
  std::string flavor = "unknown";
};
// From the text of /proc/driver/nvidia/version; unknown for text that is not understood.
kernel_driver parse_kernel_driver(const std::string& proc_text);
// Reads that file.
kernel_driver read_kernel_driver();

}  // namespace pl
