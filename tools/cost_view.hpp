// SPDX-License-Identifier: Apache-2.0
// A cost table for people: where one way takes over from another, and why a size goes the way it goes.
#pragma once

#include <string>
#include <vector>

#include "copy_case.hpp"
#include "result_file.hpp"

namespace pl::tools {

// Sizes of at most `up_to_bytes` (and above the entry before) go this way. The last entry has UINT64_MAX.
struct crossover {
  std::uint64_t up_to_bytes = UINT64_MAX;
  copy::choice how;
};
std::vector<crossover> crossovers(const copy::cost_table& costs, const copy_case& which, bool engine_hot);
// "up to 960 B: cpu_load; up to 32 KiB: engine_low_latency; above: copy_engine"
std::string to_text(const std::vector<crossover>& list);
// Prints them for a hot and a cold engine, a line each behind `indent`, and adds their rows to the results.
void report_crossovers(const copy::cost_table& costs, const copy_case& which, const char* indent, result_file& file);

// One way and why it is taken or not.
struct alternative {
  copy::choice how;
  double expected_ns = 0;  // infinite: it has no curve, or cannot do this size
  std::string why;         // "taken", "1.24 x slower", "engine cold", "copies 16 KiB and more", ...
  bool is_taken = false;
};
// Everything that exists for the case, cheapest first; what cannot be done comes last.
std::vector<alternative> explain(const copy::cost_table& costs, const copy_case& which, bool engine_hot,
                                 std::uint64_t bytes);

// All cases, in the order in which tools print them.
std::vector<copy_case> all_copy_cases();

}  // namespace pl::tools
