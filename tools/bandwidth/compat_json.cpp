// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/compat_json.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "measure/machine.hpp"
#include "tools/bandwidth/selection.hpp"

namespace pl::bandwidth {
namespace {

using nlohmann::json;

std::string scalar_text(const json& value) {
  if (!value.is_number_float()) return value.dump(-1, ' ', false, json::error_handler_t::replace);
  const double number = value.get<double>();
  if (!std::isfinite(number)) return "null";
  std::string text = format("%.17g", number);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

// `on_own_line`: the value of a key; its bracket stands below the key. An element's stands where the element does.
void write(const json& value, int depth, bool on_own_line, std::string& out) {
  if (!value.is_structured() || value.empty()) {
    out += value.is_structured() ? (value.is_object() ? "{}" : "[]") : scalar_text(value);
    return;
  }
  const std::string indent(static_cast<std::size_t>(depth) * 3, ' ');
  if (on_own_line) out += "\n" + indent;
  const bool is_object = value.is_object();
  out += is_object ? "{" : "[";
  const char* separator = "\n";
  for (const auto& each : value.items()) {
    out += separator + indent + "   ";
    separator = ",\n";
    if (is_object) out += json(each.key()).dump() + " : ";
    write(each.value(), depth + 1, is_object, out);
  }
  out += "\n" + indent + (is_object ? "}" : "]");
}

std::string cell_text(const cell& one) { return one.state == cell_state::measured ? format("%g", one.value) : "N/A"; }

const char* status_text(const test_outcome& outcome) {
  if (outcome.index == kUnknownTestcase) return "ERROR";
  switch (outcome.state) {
    case test_state::passed:
    case test_state::slow:
    case test_state::unsteady:
      return "Passed";
    case test_state::waived:
      return "Waived";
    case test_state::interrupted:
      return "Running";
    case test_state::failed:
    case test_state::error:
      return "Error";
  }
  return "Error";
}

json test_json(const test_outcome& outcome, const compat_style& style) {
  json out{{"name", outcome.key}, {"status", status_text(outcome)}};
  if (outcome.state == test_state::waived) out["waiver_reason"] = outcome.reason;
  if (outcome.state == test_state::waived || outcome.state == test_state::error || outcome.index == kUnknownTestcase)
    return out;
  json rows = json::array();
  const matrix* last = nullptr;
  // The matrices of a bidirectional test stand below each other; description and figures are those of the last, the total.
  for (const matrix& one : outcome.matrices) {
    if (one.is_native_only) continue;
    for (const auto& cells : one.cells) {
      json row = json::array();
      for (const cell& each : cells) row.push_back(cell_text(each));
      rows.push_back(std::move(row));
    }
    last = &one;
  }
  if (last == nullptr) return out;
  const compat_figures figures = figures_of(*last, style.original_mistakes);
  out["bandwidth_description"] = last->title;
  out["bandwidth_matrix"] = std::move(rows);
  out["sum"] = figures.sum;
  if (has_variation(*last)) out["coefficient_of_variation"] = figures.variation;
  if (style.verbose) {
    out["min"] = figures.min;
    out["max"] = figures.max;
    out["average"] = figures.average;
  }
  return out;
}

}  // namespace

std::string styled_json(const json& value) {
  std::string out;
  write(value, 0, false, out);
  return out + "\n";
}

std::string compat_json(const compat_environment& environment, std::span<const test_outcome> outcomes,
                        const compat_style& style, const std::string& error, const std::string& warning) {
  json inner{{"CUDA Runtime Version", environment.cuda_version},
             {"Driver Version", environment.driver_version},
             {"git_version", std::string("peerlane-") + kGitRevision},
             {"version", kCompatVersion}};
  json devices = json::array();
  for (std::size_t i = 0; i < environment.devices.size(); ++i)
    devices.push_back(format("%zu: %s: (%s)", i, environment.devices[i].c_str(), environment.host.c_str()));
  inner["GPU Device list"] = std::move(devices);
  if (!error.empty()) inner["error"] = error;
  if (!warning.empty()) inner["warning"] = warning;
  json tests = json::array();
  for (const test_outcome& each : outcomes) tests.push_back(test_json(each, style));
  inner["testcases"] = std::move(tests);
  return styled_json(json{{"nvbandwidth", std::move(inner)}});
}

}  // namespace pl::bandwidth
