// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/cell_judge.hpp"

#include "tools/bandwidth/efficiency_table.hpp"
#include "tools/bandwidth/expectation.hpp"

namespace pl::bandwidth {
namespace {

void judge_with(const test_context& context, const machine_links* after, cell& one) {
  measurement_context known;
  known.before = &context.links;
  known.after = after;
  for (const place& end : {one.path.source, one.path.destination})
    if (end.type == place::kind::host) known.host_node = end.index;
  known.coefficient_of_variation = describe(one.samples).coefficient_of_variation;
  known.attempts = one.attempts;
  one.judged = judge(one.value, *one.expected, one.path, known, context.options.limits);
}

bool start_up_counts(const machine_links& links, const cell& one) {
  const auto crossed = find_crossed_link(links, one.path);
  return crossed && one.path.measured_quantity == transfer_path::quantity::bandwidth &&
         one.path.bytes < enough_bytes(start_up_us(one.path.executor.kind, crossed->kind), one.expected->value);
}

bool is_bad_cell(const cell& one) { return one.judged && one.judged->level != verdict_level::good; }

}  // namespace

void judge_cell(const test_context& context, cell& one) { judge_cell(context, one, expect(context.links, one.path)); }

void judge_cell(const test_context& context, cell& one, std::optional<expectation> expected) {
  if (!context.options.judge) return;
  one.expected = std::move(expected);
  one.judged.reset();
  if (one.expected && !context.options.judge_small && start_up_counts(context.links, one)) one.expected.reset();
  if (one.expected) judge_with(context, nullptr, one);
}

void rejudge_with_evidence(const test_context& context, test_outcome& outcome) {
  bool any = false;
  for (const matrix& each : outcome.matrices)
    for (const auto& row : each.cells)
      for (const cell& one : row) any = any || is_bad_cell(one);
  if (!any) return;
  const machine_links after = read_links(context.gpus);
  for (matrix& each : outcome.matrices)
    for (auto& row : each.cells)
      for (cell& one : row)
        if (is_bad_cell(one)) judge_with(context, &after, one);
}

}  // namespace pl::bandwidth
