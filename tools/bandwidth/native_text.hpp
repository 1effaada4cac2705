// SPDX-License-Identifier: Apache-2.0
// Outcomes for people.
#pragma once

#include <span>
#include <string>

#include "tools/bandwidth/baseline.hpp"
#include "tools/bandwidth/outcome.hpp"

namespace pl::bandwidth {

// One testcase at one size: a table with a line for each cell while there are few, else matrices; below, what is wrong.
std::string native_text(const test_outcome& outcome, const baseline* reference);

// One testcase at several sizes (at least one outcome, all of the same testcase): a line for each size.
std::string native_sweep_text(std::span<const test_outcome> by_size);

// -v: every sample of every bandwidth.
std::string native_samples(const test_outcome& outcome);

// The last lines: how many testcases ended how, and what the baseline says.
std::string native_closing(std::span<const test_outcome> outcomes, const baseline* reference);

}  // namespace pl::bandwidth
