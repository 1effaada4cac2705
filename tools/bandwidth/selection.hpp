// SPDX-License-Identifier: Apache-2.0
// Which testcases run, and what the program's exit code says about them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tools/bandwidth/bandwidth_options.hpp"
#include "tools/bandwidth/baseline.hpp"

namespace pl::bandwidth {

// Indices of outcomes that are no testcases of the table.
constexpr int kUnknownTestcase = -1;
constexpr int kTransferLine = -2;

struct selected {
  const testcase* test = nullptr;  // null: there is no such name, or it is a line of --transfer
  std::string asked;               // the name, or the line
  bool is_transfer = false;
};

// What was asked for in its order; ours under the original's name and in its output only by their own names. Without any: by
// --transfer alone these, under the original's name and in its output 0-34, of several processes the multi-node ones, else
// the single-node ones and ours. EINVAL: a prefix that fits none.
result<std::vector<selected>> select_testcases(const bandwidth_options& options, int processes);

// 0 all good, 1 not from here (usage and internal errors), 2 a mismatch or an error, 3 something is slow, 4 interrupted,
// 5 nothing ran, 6 nothing is slow but samples varied too much for a verdict. Of several the most severe: 2, 4, 3, 6, 5, 0.
int exit_code_of(std::span<const test_outcome> outcomes, bool interrupted, const baseline* reference);
// The original's: 1 for a mismatch or an error, else 0; 4 when interrupted, which it does not know.
int original_exit_code(std::span<const test_outcome> outcomes, bool interrupted);

}  // namespace pl::bandwidth
