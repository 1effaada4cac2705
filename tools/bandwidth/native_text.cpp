// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/native_text.hpp"

#include <algorithm>
#include <map>

#include "base/statistics.hpp"
#include "base/text.hpp"
#include "measure/text_table.hpp"
#include "tools/bandwidth/transfer_grammar.hpp"

namespace pl::bandwidth {
namespace {

constexpr std::size_t kMaxLines = 16;  // of cells in a table; more are matrices

std::size_t cell_count(const test_outcome& outcome) {
  std::size_t count = 0;
  for (const matrix& each : outcome.matrices) count += each.rows.size() * each.columns.size();
  return count;
}

bool is_latency(const test_outcome& outcome) { return !outcome.matrices.empty() && outcome.matrices[0].unit == "ns"; }

std::string result_cell_name(const matrix& grid, std::size_t row, std::size_t column) {
  if (grid.row_label == "transfer") return grid.rows[row];
  const std::string source = grid.row_label == "all" ? "all" : grid.row_label + " " + grid.rows[row];
  const std::string destination = grid.columns[column] == "all" ? "all" : grid.column_label + " " + grid.columns[column];
  if (grid.row_label != "GPU" || grid.rows.size() > 1) return source + ", " + destination;  // else: one GPU by itself
  return destination;
}

std::string verdict_text(const cell& one) {
  if (one.state == cell_state::mismatch) return "WRONG DATA";
  if (one.state == cell_state::error) return "error";
  if (one.state == cell_state::not_applicable) return "N/A";
  return one.judged ? format("%s (%.0f %%)", to_string(one.judged->level), one.judged->ratio * 100) : "";
}

void add_line(text_table& table, const matrix& grid, std::size_t row, std::size_t column, const baseline* reference,
              const std::string& key) {
  const cell& one = grid.cells[row][column];
  std::vector<std::string> line = {grid.part.empty() ? "" : grid.part, result_cell_name(grid, row, column)};
  if (one.state != cell_state::measured) {
    line.insert(line.end(), {"", "", ""});
    if (grid.unit == "ns") line.insert(line.end(), {"", ""});
  } else if (grid.unit == "ns") {
    const summary all = summarize(one.samples);
    for (const double each : {one.value, all.p50, all.p90, all.p99, all.max}) line.push_back(short_number(each));
  } else {
    const sample_statistics all = describe(one.samples);
    line.push_back(short_number(one.value));
    line.push_back(all.ci95_half_width > 0 ? short_number(all.ci95_half_width) : "");
    line.push_back(one.samples.size() > 1 ? format("%.1f", all.coefficient_of_variation * 100) : "");
  }
  line.push_back(one.expected ? short_number(one.expected->value) : "");
  line.push_back(verdict_text(one));
  if (reference != nullptr) {
    const auto found = reference->compare(key, grid, row, column);
    line.push_back(found ? short_number(found->before) : "");
    line.push_back(found ? format("%s (%+.1f %%)", found->verdict(), (found->ratio - 1) * 100) : "");
  }
  table.add_row(std::move(line));
}

std::string lines_text(const test_outcome& outcome, const baseline* reference) {
  using align = text_table::align;
  std::vector<text_table::column> columns = {{"part", align::left}, {"between", align::left}};
  const auto names = is_latency(outcome) ? std::vector<const char*>{"ns", "p50", "p90", "p99", "max", "expected"}
                                         : std::vector<const char*>{"GB/s", "+-95 %", "CV %", "expected"};
  for (const char* name : names) columns.push_back({name, align::right});
  columns.push_back({"verdict", align::left});
  if (reference != nullptr) {
    columns.push_back({"baseline", align::right});
    columns.push_back({"change", align::left});
  }
  text_table table(std::move(columns));
  for (const matrix& grid : outcome.matrices)
    for (std::size_t row = 0; row < grid.rows.size(); ++row)
      for (std::size_t column = 0; column < grid.columns.size(); ++column)
        if (!(grid.rows.size() > 1 && row == column && grid.cells[row][column].state == cell_state::not_applicable))
          add_line(table, grid, row, column, reference, outcome.key);
  return table.render();
}

std::string short_cell(const cell& one) {
  switch (one.state) {
    case cell_state::measured:
      return short_number(one.value) + (one.judged && one.judged->level != verdict_level::good ? " !" : "");
    case cell_state::mismatch:
      return "WRONG";
    case cell_state::error:
      return "error";
    case cell_state::not_applicable:
      return "N/A";
  }
  return "";
}

std::string matrix_text(const matrix& grid) {
  std::vector<text_table::column> columns = {{grid.row_label, text_table::align::left}};
  for (const std::string& name : grid.columns) columns.push_back({name, text_table::align::right});
  text_table table(std::move(columns));
  std::vector<double> values;
  for (std::size_t row = 0; row < grid.rows.size(); ++row) {
    std::vector<std::string> line = {grid.rows[row]};
    for (const cell& one : grid.cells[row]) {
      line.push_back(short_cell(one));
      if (one.state == cell_state::measured) values.push_back(one.value);
    }
    table.add_row(std::move(line));
  }
  std::string out = grid.title + "\n" + table.render();
  if (values.empty()) return out;
  const sample_statistics all = describe(values);
  return out + format("min %s  median %s  max %s  sum %s %s\n", short_number(all.min).c_str(),
                      short_number(all.median).c_str(), short_number(all.max).c_str(), short_number(sum_of(grid)).c_str(),
                      grid.unit.c_str());
}

// Each sentence once: eight GPUs that lack the same thing lack it once.
std::string remarks(const test_outcome& outcome) {
  std::vector<std::pair<std::string, std::vector<std::string>>> said;
  const auto add_remark = [&](const std::string& remark, const std::string& place_name) {
    if (remark.empty()) return;
    const auto found = std::find_if(said.begin(), said.end(), [&](const auto& each) { return each.first == remark; });
    if (found == said.end()) said.push_back({remark, {place_name}});
    else found->second.push_back(place_name);
  };
  for (const matrix& grid : outcome.matrices)
    for (std::size_t row = 0; row < grid.rows.size(); ++row)
      for (std::size_t column = 0; column < grid.columns.size(); ++column) {
        const cell& one = grid.cells[row][column];
        const bool diagonal = grid.rows.size() > 1 && row == column;
        if (one.state != cell_state::measured && !diagonal) add_remark(one.reason, result_cell_name(grid, row, column));
        if (one.attempts > 1 && !(one.judged && one.judged->is_varied))
          add_remark(format("measured %u times, as the samples of the run%s before varied", one.attempts,
                            one.attempts > 2 ? "s" : ""),
                     result_cell_name(grid, row, column));
        if (one.judged && one.judged->level != verdict_level::good)
          add_remark(one.judged->reason, result_cell_name(grid, row, column));
      }
  std::string out;
  for (const auto& [remark, cells] : said)
    out += "  " + cells[0] + (cells.size() > 1 ? format(" and %zu more", cells.size() - 1) : std::string()) + ": " + remark +
           "\n";
  return out;
}

std::string name_of(const test_outcome& outcome) {
  return outcome.index >= 0 ? format("%s (%d)", outcome.key.c_str(), outcome.index) : outcome.key;
}

std::string heading(const test_outcome& outcome) {
  std::string out = name_of(outcome);
  if (!outcome.matrices.empty()) {
    const cell& first = outcome.matrices[0].cells.back()[0];
    if (first.path.bytes > 0) out += "  " + format_size(first.path.bytes);
  }
  if (outcome.state != test_state::passed) out += format("  %s", to_string(outcome.state));
  return out + "\n";
}

}  // namespace

std::string native_text(const test_outcome& outcome, const baseline* reference) {
  std::string out = heading(outcome);
  if (outcome.matrices.empty() || outcome.state == test_state::waived) return out + "  " + outcome.reason + "\n\n";
  const bool few = cell_count(outcome) <= kMaxLines;
  if (few) out += outcome.matrices[0].title + "\n" + lines_text(outcome, reference);
  else
    for (const matrix& each : outcome.matrices) out += matrix_text(each);
  out += remarks(outcome);
  if (outcome.state == test_state::passed && !outcome.reason.empty()) out += "  note: " + outcome.reason + "\n";
  return out + "\n";
}

std::string native_sweep_text(std::span<const test_outcome> by_size) {
  const test_outcome& first = by_size[0];
  std::string out = name_of(first) + "\n";
  if (first.matrices.empty() || first.state == test_state::waived) return out + "  waived: " + first.reason + "\n\n";
  text_table table({{"size"}, {"GB/s min"}, {"median"}, {"max"}, {"cells"}, {"", text_table::align::left}});
  for (const test_outcome& each : by_size) {
    if (each.matrices.empty()) continue;
    std::vector<double> values;
    std::uint64_t bytes = 0;
    for (const auto& row : each.matrices[0].cells)
      for (const cell& one : row)
        if (one.state == cell_state::measured) {
          values.push_back(one.value);
          bytes = one.path.bytes;
        }
    const sample_statistics all = describe(values);
    const bool passed = each.state == test_state::passed;
    table.add_row({bytes > 0 ? format_size(bytes) : "", short_number(all.min), short_number(all.median),
                   short_number(all.max), std::to_string(values.size()),
                   passed ? "" : std::string(to_string(each.state)) + ": " + each.reason});
  }
  return out + first.matrices[0].title + "\n" + table.render() + "\n";
}

std::string native_samples(const test_outcome& outcome) {
  std::string out;
  for (const matrix& grid : outcome.matrices)
    for (std::size_t row = 0; row < grid.rows.size(); ++row)
      for (std::size_t column = 0; column < grid.columns.size(); ++column) {
        const cell& one = grid.cells[row][column];
        if (one.samples.empty() || grid.unit != "GB/s") continue;
        out += format("  %s %s:", grid.part.empty() ? "samples" : grid.part.c_str(),
                      result_cell_name(grid, row, column).c_str());
        for (const double each : one.samples) out += " " + short_number(each);
        out += "\n";
      }
  return out.empty() ? out : out + "\n";
}

std::string native_closing(std::span<const test_outcome> outcomes, const baseline* reference) {
  std::map<test_state, std::size_t> count;
  std::size_t compared = 0, slow = 0, fast = 0;
  for (const test_outcome& each : outcomes) {
    ++count[each.state];
    for (const matrix& grid : each.matrices)
      for (std::size_t row = 0; reference != nullptr && row < grid.rows.size(); ++row)
        for (std::size_t column = 0; column < grid.columns.size(); ++column)
          if (const auto found = reference->compare(each.key, grid, row, column)) {
            ++compared;
            slow += found->slow ? 1 : 0;
            fast += found->fast ? 1 : 0;
          }
  }
  std::string out = plural(outcomes.size(), "testcase") + ":";
  for (const auto& [state, how_many] : count) out += format(" %zu %s,", how_many, to_string(state));
  out.back() = '\n';
  if (reference != nullptr)
    out +=
        format("baseline (%s): %s compared, %zu slow, %zu fast, beyond %g %% and the confidence intervals\n",
               reference->machine().c_str(), plural(compared, "cell").c_str(), slow, fast, reference->threshold_percent());
  return out;
}

}  // namespace pl::bandwidth
