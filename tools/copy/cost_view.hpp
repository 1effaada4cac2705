// SPDX-License-Identifier: Apache-2.0
// What tools print of a cost table (explain.hpp).
#pragma once

#include <vector>

#include "measure/result_file.hpp"
#include "tools/copy/copy_case.hpp"

namespace pl::tools {

// Prints the crossovers between methods for a hot and a cold engine, one line each, indented by `indent`, and adds the
// rows to the results.
void report_crossovers(const copy::cost_table& costs, const copy_case& test_case, const char* indent, result_file& file);

// All cases, in the order in which tools print them.
std::vector<copy_case> all_copy_cases();

}  // namespace pl::tools
