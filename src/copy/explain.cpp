// SPDX-License-Identifier: Apache-2.0
#include "explain.hpp"

#include <algorithm>
#include <cmath>

#include "text.hpp"

namespace pl::copy {
namespace {

std::string duration(double ns) {
  if (ns < 1e3) return format("%.0f ns", ns);
  if (ns < 1e6) return format("%.2f us", ns / 1e3);
  return format("%.2f ms", ns / 1e6);
}

}  // namespace

std::string crossovers(const cost_table& table, direction way, other_side side, bool engine_hot) {
  std::string out;
  choice last{method::registered, 255};
  for (std::size_t cell = 1; cell < cost_table::kCells; ++cell) {
    const std::uint64_t bytes = cost_table::smallest_of(cell);
    if (cost_table::cell_of(bytes) != cell) continue;
    const choice now = table.pick(way, side, engine_hot, bytes);
    if (now == last) continue;
    out += format("%s%s: %s", out.empty() ? "" : ", ", format_size(bytes).c_str(), to_text(now).c_str());
    last = now;
  }
  return out;
}

std::string explain(const cost_table& table, const std::string& origin, direction way, other_side side, bool engine_hot,
                    std::uint64_t bytes) {
  const choice taken = table.pick(way, side, engine_hot, bytes);
  std::string out = format("%s %s, %s, GPU engine %s: %s\n", format_size(bytes).c_str(), name_of(way), name_of(side),
                           engine_hot ? "hot" : "cold", to_text(taken).c_str());
  struct line {
    choice how;
    double ns;
  };
  std::vector<line> lines;
  for (const auto& how : candidates(way, side)) lines.push_back({how, table.cost(way, side, how, bytes)});
  std::stable_sort(lines.begin(), lines.end(), [](const line& a, const line& b) { return a.ns < b.ns; });
  const double taken_ns = table.cost(way, side, taken, bytes);
  for (const auto& one : lines) {
    std::string why;
    const auto limits = limits_of(way, one.how);
    if (one.how == taken) why = "taken";
    else if (bytes < limits.least) why = format("not below %s", format_size(limits.least).c_str());
    else if (bytes > limits.most) why = format("not above %s", format_size(limits.most).c_str());
    else if (!std::isfinite(one.ns)) why = "not measured here";
    else if (needs_engine(one.how.how) && !engine_hot) why = "needs the GPU engine, which is not resident";
    else why = std::isfinite(taken_ns) && taken_ns > 0 ? format("%.2f times the time", one.ns / taken_ns) : "slower";
    out += format("  %-22s %12s  %s\n", to_text(one.how).c_str(), std::isfinite(one.ns) ? duration(one.ns).c_str() : "-",
                  why.c_str());
  }
  out += format("ways by size: %s\n", crossovers(table, way, side, engine_hot).c_str());
  out += format("costs: %s\n", origin.c_str());
  return out;
}

}  // namespace pl::copy
