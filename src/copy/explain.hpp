// SPDX-License-Identifier: Apache-2.0
// Describes a cost table as text: the crossovers between methods, and the reason for the choice at a size.
#pragma once

#include <string>
#include <vector>

#include "copy/cost_table.hpp"

namespace pl::copy {

// Sizes up to `up_to_bytes` (and above the previous entry) use this method. The last entry has UINT64_MAX.
struct crossover {
  std::uint64_t up_to_bytes = UINT64_MAX;
  choice option;
};
std::vector<crossover> crossovers(const cost_table& costs, direction way, other_side side, executor present);
// "below 2 KiB: cpu_load; up to 32 KiB: engine_low_latency; above: copy_engine"
std::string to_text(const std::vector<crossover>& list);

// One method, and why it is chosen or not.
struct alternative {
  choice option;
  double expected_ns = 0;  // infinite: it has no curve, or does not support this size
  std::string reason;      // "taken", "1.24 x slower", "no DMA channel", "only up to 32 KiB", ...
  bool is_taken = false;
};
// Every method for the case, cheapest first; unavailable ones come last.
std::vector<alternative> alternatives(const cost_table& costs, direction way, other_side side, executor present,
                                      std::uint64_t bytes);

// A remark for host memory that takes another method because the driver is not asked whether it is pinned
// (cost_table::pick_without_query); empty if the method is the same.
std::string no_query_remark(const cost_table& costs, direction way, other_side side, executor present, std::uint64_t bytes);

// All of this as a text of several lines; `origin` says where the costs come from.
std::string explain(const cost_table& costs, const std::string& origin, direction way, other_side side, executor present,
                    std::uint64_t bytes);

}  // namespace pl::copy
