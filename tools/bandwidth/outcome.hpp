// SPDX-License-Identifier: Apache-2.0
// What a testcase found: matrices of cells. Every output (tables, JSON, CSV, the original's text) is a view of this.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/bandwidth/judgement.hpp"
#include "tools/bandwidth/runner.hpp"

namespace pl::bandwidth {

// Mean with a 95 % confidence interval by Student's t over the samples.
struct sample_statistics {
  double median = 0, mean = 0, min = 0, max = 0, p99 = 0;
  double stddev = 0;
  double coefficient_of_variation = 0;  // stddev / mean; 0 for fewer than 2 samples
  double ci95_half_width = 0;           // mean +- this; 0 for fewer than 2 samples
};
sample_statistics describe(const std::vector<double>& samples);

enum class cell_state { measured, not_applicable, mismatch, error };

struct cell {
  cell_state state = cell_state::not_applicable;
  std::string reason;  // for every state but measured
  double value = 0;    // GB/s or ns: the median, or the mean if that was asked for
  std::vector<double> samples;
  unsigned attempts = 1;  // runs it took: 2 or 3 where samples varied; the values are the last one's
  transfer_path path;     // what was measured, for the judgement
  std::optional<expectation> expected;
  std::optional<verdict> judged;
  mismatch wrong;
};

struct matrix {
  std::string part;   // "" for a testcase's main matrix; else "read1", "write2", "total", "opposite", ...
  std::string title;  // right arrows, units
  std::string unit = "GB/s";
  std::string row_label = "CPU", column_label = "GPU";
  std::vector<std::string> rows, columns;
  std::vector<std::vector<cell>> cells;
  bool is_native_only = false;  // the original has no such matrix: not in its text and JSON
};

// slow: a verdict below the threshold; unsteady: samples varied too much for a verdict.
enum class test_state { passed, waived, failed, error, slow, unsteady, interrupted };
const char* to_string(test_state state);

struct test_outcome {
  int index = -1;
  std::string key;
  test_state state = test_state::passed;
  std::string reason;  // why waived, failed or in error: what, where, and what to do
  std::vector<matrix> matrices;
  double seconds = 0;
};

// Sum over measured cells of a matrix.
double sum_of(const matrix& one);

}  // namespace pl::bandwidth
