// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "base/text.hpp"
#include "tools/common/terminal.hpp"
#include "tools/gate/gate.hpp"

namespace pl::gate {
namespace {

std::string place_of(const finding& one) { return one.gpu >= 0 ? format("GPU %d: ", one.gpu) : std::string(); }

// Backslash, quote and line feed are all that the format wants escaped.
std::string label(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') out += "\\n";
    else if (c == '"' || c == '\\') (out += '\\') += c;
    else out += c;
  }
  return out;
}

}  // namespace

std::string one_line(const outcome& result, std::size_t gpus) {
  const auto worst_are = [&](level severity) {
    return std::count_if(result.findings.begin(), result.findings.end(),
                         [severity](const finding& one) { return one.severity == severity; });
  };
  const bool is_bad = result.worst == level::unfit || result.worst == level::unknown;
  if (!is_bad) {
    const std::string part =
        result.only_passive ? result.is_busy ? ", in use: nothing was measured" : ", nothing was measured" : "";
    return format("fit: %s, %s in %.1f s%s", plural(gpus, "GPU").c_str(), plural(result.findings.size(), "check").c_str(),
                  result.seconds, part.c_str());
  }
  const auto first = std::find_if(result.findings.begin(), result.findings.end(),
                                  [&](const finding& one) { return one.severity == result.worst; });
  const auto more = worst_are(result.worst) - 1;
  std::string line = std::string(result.worst == level::unfit ? "unfit: " : "unknown: ") + place_of(*first) +
                     tools::without_controls(first->reason);
  if (more > 0) line += format(" (%td more)", more);
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

std::string table_text(const outcome& result) {
  std::string out;
  for (const finding& one : result.findings)
    out += format("%-8s %-12s %s%s\n", to_string(one.severity), one.check.c_str(), place_of(one).c_str(),
                  tools::without_controls(one.reason).c_str());
  return out;
}

std::string prometheus_text(const outcome& result, const machine_state& machine) {
  const auto bus_id = [&](int gpu) {
    return gpu < 0 ? std::string("machine") : machine.links.gpus[static_cast<std::size_t>(gpu)].bus_id;
  };
  std::string out =
      "# HELP peerlane_gate_fit Whether this machine is fit for a job: 1 fit, 0 unfit, -1 not known.\n"
      "# TYPE peerlane_gate_fit gauge\n";
  out += format("peerlane_gate_fit %d\n", result.worst == level::unfit ? 0 : result.worst == level::unknown ? -1 : 1);
  out += "# HELP peerlane_gate_seconds How long the gate took.\n# TYPE peerlane_gate_seconds gauge\n";
  out += format("peerlane_gate_seconds %.3f\n", result.seconds);
  out += "# HELP peerlane_gate_in_use Whether another process had a GPU, so that nothing was measured.\n";
  out += format("# TYPE peerlane_gate_in_use gauge\npeerlane_gate_in_use %d\n", result.is_busy ? 1 : 0);
  // Checks of several pairs of one GPU are one series: its worst.
  std::map<std::pair<std::string, std::string>, level> states;
  for (const finding& one : result.findings) {
    auto& state = states.try_emplace({one.check, bus_id(one.gpu)}, level::ok).first->second;
    state = std::max(state, one.severity);
  }
  out +=
      "# HELP peerlane_gate_check State of one check: 0 ok, 1 note, 2 not known, 3 unfit.\n# TYPE peerlane_gate_check "
      "gauge\n";
  for (const auto& [series, state] : states)
    out += format("peerlane_gate_check{check=\"%s\",gpu=\"%s\"} %d\n", label(series.first).c_str(),
                  label(series.second).c_str(), static_cast<int>(state));
  out += "# HELP peerlane_gate_gigabytes_per_second What was measured.\n# TYPE peerlane_gate_gigabytes_per_second gauge\n";
  for (const reading& one : result.readings) {
    if (one.outcome != reading::state::measured) continue;
    out += format("peerlane_gate_gigabytes_per_second{check=\"%s\",gpu=\"%s\",peer=\"%s\"} %.6g\n", label(one.name).c_str(),
                  label(bus_id(one.gpu)).c_str(), one.peer >= 0 ? label(bus_id(one.peer)).c_str() : "", one.value);
  }
  return out;
}

}  // namespace pl::gate
