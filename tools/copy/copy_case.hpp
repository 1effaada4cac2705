// SPDX-License-Identifier: Apache-2.0
// What `peerlane copy` sweeps over, and how it judges the measurements. Pure: no GPU, no clock.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "copy/cost_table.hpp"

namespace pl::tools {

// A direction and what lies on the other side of the GPU memory.
struct copy_case {
  copy::direction way;
  copy::other_side side;
  bool operator==(const copy_case&) const = default;
};
const char* direction_label(const copy_case& test_case);  // "h2d", "d2h", "d2d", "p2p"
const char* memory_label(const copy_case& test_case);     // "pinned", "pageable", "device"

// The cases for directions ("h2d", ... or "all") and memories ("pinned", "pageable", "all"). EINVAL names what there is.
result<std::vector<copy_case>> parse_cases(const std::vector<std::string>& directions,
                                           const std::vector<std::string>& memories);

// Powers of two from `least` to `most`, both included, and with `odd` several other sizes. Ascending, without
// duplicates.
std::vector<std::uint64_t> sweep_sizes(std::uint64_t least, std::uint64_t most, bool odd);

// Whether the --methods list wants this contender: by its whole name ("cpu_store x4") or its method ("cpu_store"). An empty
// list wants everything.
bool is_wanted(const std::vector<std::string>& wanted, const std::string& name);

// One contender's median. `is_single`: it is one method, not the planner or a variant of it. `is_ours`: the planner could
// have picked it (cuMemcpy it could not).
struct measured_method {
  std::string name;
  double p50_ns = 0;
  bool is_single = true;
  bool is_ours = true;
};

// The planner against the best single method at one size.
struct envelope_point {
  std::string best_method;
  double best_ns = 0;
  std::string best_available;  // of the methods that the planner could have picked
  double best_available_ns = 0;
  double planner_ns = 0;
  double ratio = 0;
  bool exceeds = false;  // slower by more than kEnvelopeShare and kEnvelopeNs
};
constexpr double kEnvelopeShare = 0.10;
constexpr double kEnvelopeNs = 100;
bool exceeds_envelope(double planner_ns, double best_ns);
// Nothing if no single method or no contender `planner` was measured.
std::optional<envelope_point> judge(std::span<const measured_method> all, const std::string& planner = "planner");

// The lowest of many medians is too low by luck. A size that seems to exceed is therefore measured again with only the
// planner and the best method, in alternating turns. A pair is one turn of each, back to back.
struct sample_pair {
  double planner_ns = 0, best_ns = 0;
};
struct interval {
  double low = 0, middle = 0, high = 0;
};
// Median with its 95 % confidence interval from order statistics, without assuming a distribution. Fewer than six values
// give their whole range, no values all 0.
interval median_interval(std::vector<double> values);

struct paired_comparison {
  double planner_ns = 0, best_ns = 0;  // medians
  interval ratio;                      // of pairs
  bool exceeds = false;                // the planner's excess over the allowance is above 0 with that confidence
};
paired_comparison compare_pairs(std::span<const sample_pair> pairs);

// The method that a planner picked for most of its copies.
struct dominant_method {
  copy::method method = copy::method::copy_engine;
  double share = 0;  // 0: it copied nothing
};
// From the planner's counters before and after, less the copies whose method was forced.
dominant_method max_taken(const std::uint64_t (&before)[copy::kMethods], const std::uint64_t (&after)[copy::kMethods],
                          const std::uint64_t (&forced)[copy::kMethods]);
// "engine_copy x2", or "engine_copy x2 88 %" if other methods were picked too. The width is the one that the table
// gives this method at this size.
std::string to_text(const dominant_method& taken, const copy::cost_table& costs, const copy_case& test_case,
                    std::uint64_t bytes);

}  // namespace pl::tools
