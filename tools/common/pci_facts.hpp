// SPDX-License-Identifier: Apache-2.0
// BAR1 of a GPU as sysfs shows it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace pl::tools {

// Bytes of the largest prefetchable memory region in the text of /sys/bus/pci/devices/<id>/resource. That is BAR1 (the
// aperture onto GPU memory) under every numbering: GPUs with a 64-bit BAR0 have it at region 2, others at region 1.
std::optional<std::uint64_t> largest_prefetchable_bytes(const std::string& resource_text);

// For the device with this bus id ("0000:fe:00.0"); nothing if sysfs does not have it.
std::optional<std::uint64_t> bar1_size_bytes(const std::string& bus_id, const std::string& sysfs_root = "/sys");

}  // namespace pl::tools
