// SPDX-License-Identifier: Apache-2.0
#include "copy/explain.hpp"

#include <algorithm>
#include <cmath>

#include "base/text.hpp"

namespace pl::copy {
namespace {

std::string duration(double ns) {
  if (ns < 1e3) return format("%.0f ns", ns);
  if (ns < 1e6) return format("%.2f us", ns / 1e3);
  return format("%.2f ms", ns / 1e6);
}

std::string why_never(direction way, const choice& option, std::uint64_t bytes) {
  const auto limits = limits_of(way, option);
  if (bytes < limits.least) return format("only for %s and more", format_size(limits.least).c_str());
  if (bytes > limits.most) return format("only up to %s", format_size(limits.most).c_str());
  return "not in this table: not measured, or not possible on that machine";
}

}  // namespace

std::vector<crossover> crossovers(const cost_table& costs, direction way, other_side side, executor present) {
  std::vector<crossover> out;
  std::uint64_t last = 0;
  for (std::size_t cell = cost_table::cell_of(1); cell < cost_table::kCells; ++cell) {
    const std::uint64_t least = cost_table::smallest_of(cell);
    if (least == last) continue;  // no size lies in the previous cell
    last = least;
    const choice option = costs.pick(way, side, present, least);
    if (!out.empty() && out.back().option == option) continue;
    if (!out.empty()) out.back().up_to_bytes = least - 1;
    out.push_back({UINT64_MAX, option});
  }
  return out;
}

std::string to_text(const std::vector<crossover>& list) {
  std::string out;
  for (const auto& one : list) {
    if (!out.empty()) out += "; ";
    if (one.up_to_bytes != UINT64_MAX) {
      // A method ends at a round size or one byte below it, and the round number reads better.
      const bool is_round = cost_table::cell_of(one.up_to_bytes) % 2 == 0;
      out += format("%s %s: ", is_round ? "up to" : "below", format_size(one.up_to_bytes + (is_round ? 0 : 1)).c_str());
    } else {
      out += list.size() == 1 ? "all sizes: " : "above: ";
    }
    out += to_text(one.option);
  }
  return out;
}

std::vector<alternative> alternatives(const cost_table& costs, direction way, other_side side, executor present,
                                      std::uint64_t bytes) {
  const choice taken = costs.pick(way, side, present, bytes);
  auto ways = candidates(way, side);
  // A table, such as the built-in one, may have widths that are no candidates today.
  for (const auto& curve : costs.curves())
    if (curve.way == way && curve.side == side && std::find(ways.begin(), ways.end(), curve.option) == ways.end())
      ways.push_back(curve.option);
  if (std::find(ways.begin(), ways.end(), taken) == ways.end()) ways.push_back(taken);

  const double taken_ns = costs.cost(way, side, taken, bytes);
  std::vector<alternative> out;
  for (const auto& option : ways) {
    alternative one{option, costs.cost(way, side, option, bytes), {}, option == taken};
    if (one.is_taken) {
      one.reason =
          std::isinf(one.expected_ns) ? "taken: no way in this table does this size, DMA can do every copy" : "taken";
    } else if (std::isinf(one.expected_ns)) {
      one.reason = why_never(way, option, bytes);
    } else if (!is_available(option.kind, present)) {
      one.reason = needed_executor(option.kind) == executor::channel ? "no DMA channel" : "the copy kernel is not resident";
    } else if (one.expected_ns >= taken_ns) {
      one.reason = format("%.2f x slower", one.expected_ns / taken_ns);
    } else {
      // Decisions are made for the middle of steps of a quarter octave.
      one.reason = format("%.2f x faster here, but not in the middle of this step of sizes", taken_ns / one.expected_ns);
    }
    out.push_back(std::move(one));
  }
  std::stable_sort(out.begin(), out.end(), [](const alternative& a, const alternative& b) {
    return a.expected_ns < b.expected_ns || (a.expected_ns == b.expected_ns && a.is_taken && !b.is_taken);
  });
  return out;
}

std::string no_query_remark(const cost_table& costs, direction way, other_side side, executor present, std::uint64_t bytes) {
  if (way == direction::on_device) return "";
  const choice without_query = costs.pick_without_query(way, present, bytes);
  if (without_query.width == 0 || without_query == costs.pick(way, side, present, bytes)) return "";
  return format(
      "unless the host memory is registered: %s, which does for pinned and for pageable memory, so that the driver "
      "need not be asked (%.0f ns)\n",
      to_text(without_query).c_str(), costs.query_cost_ns());
}

std::string explain(const cost_table& costs, const std::string& origin, direction way, other_side side, executor present,
                    std::uint64_t bytes) {
  std::string out = format("%s %s, %s, executor %s: %s\n", format_size(bytes).c_str(), name_of(way), name_of(side),
                           name_of(present), to_text(costs.pick(way, side, present, bytes)).c_str());
  for (const auto& one : alternatives(costs, way, side, present, bytes))
    out += format("  %-22s %12s  %s\n", to_text(one.option).c_str(),
                  std::isfinite(one.expected_ns) ? duration(one.expected_ns).c_str() : "-", one.reason.c_str());
  out += no_query_remark(costs, way, side, present, bytes);
  out += format("ways by size: %s\n", to_text(crossovers(costs, way, side, present)).c_str());
  out += format("costs: %s\n", origin.c_str());
  return out;
}

}  // namespace pl::copy
