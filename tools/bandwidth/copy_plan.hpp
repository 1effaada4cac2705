// SPDX-License-Identifier: Apache-2.0
// How many copies of each transfer make a sample. Arithmetic only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tools/bandwidth/runner.hpp"

namespace pl::bandwidth {

// What the caller asked for, before anything is raised or balanced.
std::vector<std::uint64_t> wanted_copies(std::span<const bound_transfer> transfers, const method& settings);
// Whether the numbers depend on how long a copy takes.
bool needs_probe(std::span<const bound_transfer> transfers, const method& settings);
// Copies in the round that finds that out.
std::uint64_t probe_copies(const bound_transfer& transfer, const method& settings);
// `copy_ns`: of one copy of each, with all running. Those whose number the caller fixed keep it.
std::vector<std::uint64_t> balanced_copies(std::span<const bound_transfer> transfers, const method& settings,
                                           std::span<const double> copy_ns);
// How many copies of a stream had ended `ns` after its start, the unfinished one in proportion. `ended_ns`: when every
// `step`th copy had ended, and at last when all `copies` had.
double copies_until(std::span<const double> ended_ns, std::uint64_t step, std::uint64_t copies, double ns);
// When all transfers ran, on the clock on which they started at `start_ns` and took `own_ns` each; empty if they took turns.
struct time_span {
  double from_ns = 0, to_ns = 0;
  double length_ns() const { return to_ns > from_ns ? to_ns - from_ns : 0; }
};
time_span common_span(std::span<const double> start_ns, std::span<const double> own_ns);
// Gated windows into which a sample is split, so that no stream has more than kMaxQueued copies enqueued behind the gate.
constexpr std::uint64_t kMaxQueued = 512;
std::uint64_t windows_for(std::span<const bound_transfer> transfers, const method& settings,
                          std::span<const std::uint64_t> copies);

}  // namespace pl::bandwidth
