// SPDX-License-Identifier: Apache-2.0
// Outcomes as rows: of the result file, of JSONL and of CSV. docs/schema/bandwidth.json describes them.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "measure/result_file.hpp"
#include "tools/bandwidth/baseline.hpp"
#include "tools/bandwidth/outcome.hpp"

namespace pl::bandwidth {

// "read1/0/3/65536": which cell of a testcase, the same in every run.
std::string cell_id(const matrix& grid, std::size_t row, std::size_t column);

// One cell, flat. `reference` may be null.
nlohmann::json cell_row(const std::string& key, int index, const matrix& grid, std::size_t row, std::size_t column,
                        const baseline* reference);
// The testcase itself: its state and why.
nlohmann::json test_row(const test_outcome& outcome);

// All rows and samples of an outcome.
void add_rows(result_file& file, const test_outcome& outcome, const baseline* reference);

// A header and a line for each cell.
std::string csv_text(std::span<const test_outcome> outcomes, const baseline* reference);

}  // namespace pl::bandwidth
