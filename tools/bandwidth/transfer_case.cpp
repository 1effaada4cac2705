// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/transfer_case.hpp"

#include "base/text.hpp"
#include "tools/bandwidth/transfer_grammar.hpp"

namespace pl::bandwidth {

case_plan plan_transfers(const std::vector<transfer_spec>& transfers) {
  case_plan plan;
  std::vector<std::string> rows;
  for (std::size_t i = 0; i < transfers.size(); ++i)
    rows.push_back(format("%zu: %s", i + 1, to_string(transfers[i]).c_str()));
  plan.matrices.push_back(make_matrix("", "transfers at the same time, bandwidth (GB/s)", rows, {"rate"}));
  cell_run run;
  run.name = format("%zu transfers", transfers.size());
  run.transfers = transfers;
  const bool alone = transfers.size() == 1;
  run.judged_together = !alone;
  for (std::size_t i = 0; i < transfers.size(); ++i) run.targets.push_back({.transfer = i, .row = i});
  if (!alone) {
    plan.matrices.push_back(make_matrix("total", "total over the common window (GB/s)", {"all"}, {"rate"}));
    run.targets.push_back({.rate_kind = cell_target::rate::total, .matrix = 1});
  }
  for (matrix& each : plan.matrices) {
    each.row_label = "transfer";
    each.column_label = "";
  }
  plan.runs.push_back(std::move(run));
  return plan;
}

}  // namespace pl::bandwidth
