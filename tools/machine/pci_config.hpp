// SPDX-License-Identifier: Apache-2.0
// What the configuration space of a PCI device says about peer-to-peer traffic. Without root the kernel shows only its
// first 64 bytes, and a virtual machine often shows 256: then the answers are "not known".
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace pl::tools::topo {

struct pcie_control {
  unsigned max_read_request_bytes = 0;
  bool is_relaxed_ordering_enabled = false;
};

struct acs_control {
  bool is_present = false;  // the extended configuration space was readable; false: it has no such capability
  unsigned bits = 0;
  // Requests or completions between peers below one switch are sent up to the root complex.
  bool redirects() const { return (bits & 0x0c) != 0; }
};

std::optional<pcie_control> parse_pcie_control(std::span<const std::uint8_t> config);
std::optional<acs_control> parse_acs(std::span<const std::uint8_t> config);

// The 4 KiB that the parsers above read these facts from, and nothing else: what recorded machines hold in place of a
// real configuration space, which has serial numbers in it.
struct config_facts {
  std::optional<unsigned> device_control;  // register of the PCI Express capability
  std::optional<unsigned> acs_bits;
  bool is_readable = false;  // by root on the recorded machine: what is not given is known to be absent
};
std::vector<std::uint8_t> make_config(const config_facts& facts);
config_facts extract_facts(std::span<const std::uint8_t> config);

}  // namespace pl::tools::topo
