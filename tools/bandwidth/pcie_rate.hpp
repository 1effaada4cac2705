// SPDX-License-Identifier: Apache-2.0
// What a PCIe link carries, from the specification alone. docs/link-model.md has the derivation.
#pragma once

#include <string>

namespace pl::bandwidth {

// GT/s x width x line code, in GB/s of one direction; 0 for a generation or width that does not exist.
double pcie_raw_gb_per_s(unsigned generation, unsigned width);

// Share of the raw rate that is payload, for packets of `payload_bytes` (0: 256, what nearly all servers use).
double pcie_write_efficiency(unsigned generation, unsigned payload_bytes);  // memory writes: data goes up with its request
double pcie_completion_efficiency(unsigned generation, unsigned payload_bytes);  // data of reads comes back
// How much of the raw rate read requests take in the opposite direction, for each byte that is read.
double pcie_request_overhead(unsigned generation);

std::string pcie_text(unsigned generation, unsigned width);  // "PCIe 5.0 x16"

}  // namespace pl::bandwidth
