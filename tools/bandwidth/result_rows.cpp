// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/result_rows.hpp"

#include <array>

#include "base/statistics.hpp"
#include "base/text.hpp"
#include "tools/bandwidth/transfer_grammar.hpp"

namespace pl::bandwidth {
namespace {

using nlohmann::json;

const char* to_string(cell_state state) {
  switch (state) {
    case cell_state::measured:
      return "measured";
    case cell_state::not_applicable:
      return "not_applicable";
    case cell_state::mismatch:
      return "mismatch";
    case cell_state::error:
      return "error";
  }
  return "?";
}

// Null for a missing figure, which must not read as zero.
constexpr std::array kFigures = {"value", "median", "mean", "min", "max", "stddev", "cv", "ci95", "p90", "p99"};

void add_figures(json& row, const cell& one) {
  for (const char* name : kFigures) row[name] = nullptr;
  row["sample_count"] = one.samples.size();
  row["attempts"] = one.attempts;
  if (one.state != cell_state::measured && one.state != cell_state::mismatch) return;
  const sample_statistics all = describe(one.samples);
  row["value"] = one.value;
  row["median"] = all.median;
  row["mean"] = all.mean;
  row["min"] = all.min;
  row["max"] = all.max;
  row["stddev"] = all.stddev;
  row["cv"] = all.coefficient_of_variation;
  row["ci95"] = all.ci95_half_width;
  row["p90"] = summarize(one.samples).p90;
  row["p99"] = all.p99;
}

void add_verdict(json& row, const cell& one) {
  for (const char* name :
       {"expected", "limit", "limited_by", "expected_source", "verdict", "verdict_ratio", "verdict_reason"})
    row[name] = nullptr;
  if (one.expected) {
    row["expected"] = one.expected->value;
    row["limit"] = one.expected->limit;
    row["limited_by"] = one.expected->limited_by;
    row["expected_source"] = one.expected->source;
  }
  if (one.judged) {
    row["verdict"] = to_string(one.judged->level);
    row["verdict_ratio"] = one.judged->ratio;
    row["verdict_reason"] = one.judged->reason;
  }
}

void add_path(json& row, const cell& one) {
  row["bytes"] = one.path.bytes;
  row["executor"] = to_string(one.path.executor.kind);
  row["executor_gpu"] = one.path.executor.gpu;
  row["executor_width"] = one.path.executor.width;
  row["source"] = to_string(one.path.source);
  row["destination"] = to_string(one.path.destination);
  row["opposite_direction_busy"] = one.path.opposite_too;
}

void add_baseline(json& row, const std::optional<baseline_finding>& found) {
  for (const char* name : {"baseline", "baseline_ratio", "baseline_verdict"}) row[name] = nullptr;
  if (!found) return;
  row["baseline"] = found->before;
  row["baseline_ratio"] = found->ratio;
  row["baseline_verdict"] = found->verdict();
}

std::string csv_field(const json& value) {
  if (value.is_null()) return {};
  if (!value.is_string()) return value.dump();
  std::string text = value.get<std::string>();
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  for (std::size_t offset = 0; (offset = text.find('"', offset)) != std::string::npos; offset += 2)
    text.insert(offset, 1, '"');
  return "\"" + text + "\"";
}

template <class Do>
void for_each_cell(const test_outcome& outcome, Do&& visit) {
  for (const matrix& grid : outcome.matrices)
    for (std::size_t row = 0; row < grid.cells.size(); ++row)
      for (std::size_t column = 0; column < grid.cells[row].size(); ++column) visit(grid, row, column);
}

}  // namespace

std::string cell_id(const matrix& grid, std::size_t row, std::size_t column) {
  return format("%s/%s/%s/%llu", grid.part.c_str(), grid.rows[row].c_str(), grid.columns[column].c_str(),
                static_cast<unsigned long long>(grid.cells[row][column].path.bytes));
}

json cell_row(const std::string& key, int index, const matrix& grid, std::size_t row, std::size_t column,
              const baseline* reference) {
  const cell& one = grid.cells[row][column];
  json out{{"kind", "cell"},
           {"series", key + "/" + cell_id(grid, row, column)},
           {"testcase", key},
           {"index", index},
           {"part", grid.part},
           {"row", grid.rows[row]},
           {"column", grid.columns[column]},
           {"unit", grid.unit},
           {"state", to_string(one.state)},
           {"why", one.reason},
           {"mismatched_bytes", one.wrong.bytes},
           {"first_mismatch", one.wrong.bytes > 0 ? json(one.wrong.first_offset) : json()}};
  add_figures(out, one);
  add_verdict(out, one);
  add_path(out, one);
  add_baseline(out, reference != nullptr ? reference->compare(key, grid, row, column) : std::nullopt);
  return out;
}

json test_row(const test_outcome& outcome) {
  return json{{"kind", "testcase"},       {"testcase", outcome.key},
              {"index", outcome.index},   {"state", to_string(outcome.state)},
              {"reason", outcome.reason}, {"seconds", outcome.seconds}};
}

void add_rows(result_file& file, const test_outcome& outcome, const baseline* reference) {
  file.add_row(test_row(outcome));
  for_each_cell(outcome, [&](const matrix& grid, std::size_t row, std::size_t column) {
    json one = cell_row(outcome.key, outcome.index, grid, row, column, reference);
    const cell& source = grid.cells[row][column];
    if (source.samples.empty()) one.erase("series");
    else file.add_samples(one["series"], source.samples, grid.unit == "ns" ? "ns" : "gb_per_s");
    file.add_row(std::move(one));
  });
}

std::string csv_text(std::span<const test_outcome> outcomes, const baseline* reference) {
  std::vector<std::string> names = {"testcase", "index", "part", "row", "column", "unit", "bytes", "state", "why"};
  names.insert(names.end(), kFigures.begin(), kFigures.end());
  for (const char* name :
       {"sample_count", "expected", "limit", "limited_by", "verdict", "verdict_reason", "executor", "executor_gpu",
        "executor_width", "source", "destination", "mismatched_bytes", "baseline", "baseline_ratio", "baseline_verdict"})
    names.emplace_back(name);
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i) out += (i > 0 ? "," : "") + names[i];
  out += "\n";
  for (const test_outcome& each : outcomes) {
    if (each.matrices.empty())
      out += format("%s,%d,,,,,,%s,%s%s\n", csv_field(each.key).c_str(), each.index, to_string(each.state),
                    csv_field(each.reason).c_str(), std::string(names.size() - 9, ',').c_str());
    for_each_cell(each, [&](const matrix& grid, std::size_t row, std::size_t column) {
      const json one = cell_row(each.key, each.index, grid, row, column, reference);
      for (std::size_t i = 0; i < names.size(); ++i) out += (i > 0 ? "," : "") + csv_field(one.at(names[i]));
      out += "\n";
    });
  }
  return out;
}

}  // namespace pl::bandwidth
