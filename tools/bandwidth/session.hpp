// SPDX-License-Identifier: Apache-2.0
// One run of the program: the selected testcases in turn, every output as it becomes known, the exit code.
#pragma once

#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "measure/progress.hpp"
#include "tools/bandwidth/bandwidth_options.hpp"
#include "tools/bandwidth/compat_text.hpp"
#include "tools/bandwidth/selection.hpp"
#include "tools/common/interrupt.hpp"
#include "tools/common/report.hpp"

namespace pl::bandwidth {

// What was opened before; all outlive the session. `ranks` and `reference` may be null.
struct session_parts {
  gpu_set& gpus;
  group* ranks = nullptr;
  const baseline* reference = nullptr;
  const compat_environment& environment;
};

class bandwidth_session {
 public:
  // Throws tool_failure when an output file cannot be opened.
  bandwidth_session(const bandwidth_options& options, const session_parts& parts, tools::report& out);

  // Runs and prints; the exit code.
  int run(const std::vector<selected>& selection);

 private:
  std::size_t planned_runs(const selected& one) const;
  void run_one(const selected& one);
  test_outcome outcome_of(const selected& one);
  test_outcome transfer_outcome(const std::string& line);
  void print(std::size_t first_outcome, const selected& one);
  void cell_done(const std::string& key, const matrix& grid, std::size_t row, std::size_t column);
  void write_line(const nlohmann::json& row);
  void write_files();
  int exit_code() const;
  bool is_over() const;
  bool talks() const { return parts_.ranks == nullptr || parts_.ranks->rank() == 0; }
  compat_style style() const;

  const bandwidth_options& options_;
  test_options test_;  // with the size of the turn
  session_parts parts_;
  tools::report& out_;
  machine_links links_;
  buffer_pool pool_;
  runner runner_;
  tools::interrupt_guard interrupt_;
  test_context context_;
  std::optional<progress> progress_;
  std::size_t runs_before_ = 0;  // of finished testcases
  std::ofstream lines_;          // --jsonl
  int index_now_ = 0;
  std::vector<test_outcome> outcomes_;
};

}  // namespace pl::bandwidth
