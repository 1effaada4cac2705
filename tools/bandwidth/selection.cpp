// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/selection.hpp"

#include <algorithm>
#include <cerrno>

#include "base/text.hpp"

namespace pl::bandwidth {
namespace {

constexpr int kExitBad = 2, kExitSlow = 3, kExitInterrupted = 4, kExitNothingRan = 5, kExitUnsteady = 6;

bool is_default(const testcase& one, const bandwidth_options& options, int processes) {
  using kind = testcase::kind;
  if (processes > 1) return one.group == kind::multi_node;
  return one.group == kind::single_node || (one.group == kind::ours && !options.compat);
}

bool is_slow(const test_outcome& outcome, const baseline* reference) {
  if (outcome.state == test_state::slow) return true;
  for (const matrix& grid : outcome.matrices)
    for (std::size_t row = 0; row < grid.cells.size(); ++row)
      for (std::size_t column = 0; column < grid.cells[row].size(); ++column) {
        const auto& judged = grid.cells[row][column].judged;
        if (judged && judged->level != verdict_level::good && !judged->is_varied) return true;
        if (reference == nullptr) continue;
        const auto found = reference->compare(outcome.key, grid, row, column);
        if (found && found->slow) return true;
      }
  return false;
}

// Checks cells too: an interrupted testcase may hold a mismatch.
bool is_bad(const test_outcome& outcome) {
  if (outcome.state == test_state::failed || outcome.state == test_state::error) return true;
  for (const matrix& grid : outcome.matrices)
    for (const auto& row : grid.cells)
      for (const cell& one : row)
        if (one.state == cell_state::mismatch || one.state == cell_state::error) return true;
  return false;
}

}  // namespace

result<std::vector<selected>> select_testcases(const bandwidth_options& options, int processes) {
  std::vector<selected> out;
  for (const std::string& line : options.transfers) out.push_back({nullptr, line, true});
  for (const std::string& name : options.testcases) out.push_back({find_testcase(name), name});
  for (const testcase& one : all_testcases()) {
    if (options.compat && one.group == testcase::kind::ours) continue;  // a prefix asks for what the original has
    const bool fits = std::any_of(options.prefixes.begin(), options.prefixes.end(),
                                  [&](const std::string& prefix) { return std::string_view(one.key).starts_with(prefix); });
    if (fits) out.push_back({&one, one.key});
  }
  if (!options.prefixes.empty() && out.size() == options.transfers.size())
    return failure{EINVAL, format("no testcase begins with \"%s\"; -l lists them", options.prefixes[0].c_str())};
  if (!out.empty()) return out;
  for (const testcase& one : all_testcases())
    if (is_default(one, options, processes)) out.push_back({&one, one.key});
  return out;
}

int exit_code_of(std::span<const test_outcome> outcomes, bool interrupted, const baseline* reference) {
  if (std::any_of(outcomes.begin(), outcomes.end(), is_bad)) return kExitBad;
  if (interrupted) return kExitInterrupted;
  if (std::any_of(outcomes.begin(), outcomes.end(), [&](const test_outcome& one) { return is_slow(one, reference); }))
    return kExitSlow;
  const auto unsteady = [](const test_outcome& one) { return one.state == test_state::unsteady; };
  if (std::any_of(outcomes.begin(), outcomes.end(), unsteady)) return kExitUnsteady;
  const auto waived = [](const test_outcome& one) { return one.state == test_state::waived; };
  return std::all_of(outcomes.begin(), outcomes.end(), waived) ? kExitNothingRan : tools::kExitOk;
}

int original_exit_code(std::span<const test_outcome> outcomes, bool interrupted) {
  const auto failed = [](const test_outcome& one) { return one.index != kUnknownTestcase && is_bad(one); };
  if (std::any_of(outcomes.begin(), outcomes.end(), failed)) return tools::kExitFailed;
  return interrupted ? kExitInterrupted : tools::kExitOk;
}

}  // namespace pl::bandwidth
