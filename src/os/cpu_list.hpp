// SPDX-License-Identifier: Apache-2.0
// CPUs by number: as text, and where a thread may run.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"

namespace pl {

// Logical CPU numbers as the operating system counts them, ascending, without duplicates.
using cpu_numbers = std::vector<unsigned>;

// {0,1,2,3,8} -> "0-3,8"; "none" when empty.
std::string format_cpu_list(std::span<const unsigned> cpus);

// "0-3,8" -> {0,1,2,3,8}. EINVAL with the offending part on anything else (CPU numbers above 65535 included).
result<cpu_numbers> parse_cpu_list(std::string_view text);

// Restricts the calling thread to `cpus`. EINVAL for an empty list, the kernel's errno (EINVAL when none of them may be
// used by this process) otherwise.
status pin_this_thread(std::span<const unsigned> cpus);

// CPUs the calling thread may run on now.
cpu_numbers cpus_of_this_thread();

}  // namespace pl
