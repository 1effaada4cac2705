// SPDX-License-Identifier: Apache-2.0
// A machine as a text file of some dozen lines, to be sent, kept and looked at elsewhere (docs/topology.md has the format).
// It holds the shape of the machine and its settings; no serial numbers, hardware addresses or host names.
#pragma once

#include <string>

#include "base/status.hpp"
#include "tools/machine/topo_machine.hpp"

namespace pl::tools::topo {

inline constexpr const char* kRecordingHeader = "peerlane-machine 1";

// A recording of the devices: GPUs, network adapters, and the bridges above them.
std::string write_recording(const machine& all);

// Lays the recording out below `folder` as sysfs would: read_machine(folder) then sees that machine. EINVAL with the line
// for text that is no recording, or that names files outside the folder.
status expand_recording(const std::string& text, const std::string& folder);

// What only the running machine knew, from an unpacked recording.
host_facts read_recorded_host(const std::string& folder);
void read_recorded_gpu(const std::string& folder, gpu& out);

// A name without the hardware address that persistent naming puts into it ("enx0c42a1...", "ibx...", "rocex..."): then
// `plain` instead.
std::string without_hardware_address(const std::string& name, const std::string& plain);

}  // namespace pl::tools::topo
