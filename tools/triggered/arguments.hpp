// SPDX-License-Identifier: Apache-2.0
// Values of the benchmarks' options that are lists. Each throws tools::tool_failure with the option's name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pl::async {

// Sizes in bytes, 8 to 1G, that 8 divides; K/M/G allowed.
std::vector<std::size_t> sizes_in(const char* option, const std::string& text);
// Times in us, 0 to a second; the result is in ns.
std::vector<std::uint64_t> times_in(const char* option, const std::string& text);
std::vector<int> integers_in(const char* option, const std::string& text, int lowest, int highest);

}  // namespace pl::async
