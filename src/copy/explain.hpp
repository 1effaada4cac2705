// SPDX-License-Identifier: Apache-2.0
// A cost table in words.
#pragma once

#include <string>

#include "cost_table.hpp"

namespace pl::copy {

// Which way a plain copy of `bytes` goes, what it should take, and what the other ways would: one line each, cheapest first.
std::string explain(const cost_table& table, const std::string& origin, direction way, other_side side, bool engine_hot,
                    std::uint64_t bytes);
// "1 B: cpu_load, 2 KiB: engine_low_latency, ...": where the way changes.
std::string crossovers(const cost_table& table, direction way, other_side side, bool engine_hot);

}  // namespace pl::copy
