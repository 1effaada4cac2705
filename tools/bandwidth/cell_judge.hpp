// SPDX-License-Identifier: Apache-2.0
// The one place where testcases ask for an expectation and a verdict.
#pragma once

#include "tools/bandwidth/testcase.hpp"

namespace pl::bandwidth {

// Fills `expected` and `judged` of a measured cell, unless judging is off or the model has no basis.
void judge_cell(const test_context& context, cell& one);
// The same with the rate that is expected when other transfers run at the same time.
void judge_cell(const test_context& context, cell& one, std::optional<expectation> expected);

// Judges the cells that are not good again, knowing what the links say now: counters that moved during the testcase and
// throttling are evidence. Reads the links only if there is such a cell.
void rejudge_with_evidence(const test_context& context, test_outcome& outcome);

}  // namespace pl::bandwidth
