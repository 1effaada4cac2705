// SPDX-License-Identifier: Apache-2.0
#include "cost_view.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "text.hpp"

namespace pl::tools {
namespace {

using copy::choice;
using copy::direction;
using copy::other_side;

std::string why_never(const copy_case& which, const choice& how, std::uint64_t bytes) {
  const auto limits = copy::limits_of(which.way, how);
  if (bytes < limits.least) return format("only for %s and more", format_size(limits.least).c_str());
  if (bytes > limits.most) return format("only up to %s", format_size(limits.most).c_str());
  return "not in this table: not measured, or not possible on that machine";
}

}  // namespace

std::vector<copy_case> all_copy_cases() {
  return {{direction::to_device, other_side::pinned},   {direction::to_device, other_side::pageable},
          {direction::to_host, other_side::pinned},     {direction::to_host, other_side::pageable},
          {direction::on_device, other_side::same_gpu}, {direction::on_device, other_side::peer_gpu}};
}

std::vector<crossover> crossovers(const copy::cost_table& costs, const copy_case& which, bool engine_hot) {
  std::vector<crossover> out;
  for (std::size_t cell = 1; cell < copy::cost_table::kCells; ++cell) {
    const std::uint64_t least = copy::cost_table::smallest_of(cell);
    const choice how = costs.pick(which.way, which.side, engine_hot, least);
    if (!out.empty() && out.back().how == how) continue;
    if (!out.empty()) out.back().up_to_bytes = least - 1;
    out.push_back({UINT64_MAX, how});
  }
  return out;
}

std::string to_text(const std::vector<crossover>& list) {
  std::string out;
  for (const auto& one : list) {
    if (!out.empty()) out += "; ";
    if (one.up_to_bytes != UINT64_MAX) {
      // Steps of the table end one byte below a round number, which reads better.
      out += format("below %s: ", format_size(one.up_to_bytes + 1).c_str());
    } else {
      out += list.size() == 1 ? "all sizes: " : "above: ";
    }
    out += copy::to_text(one.how);
  }
  return out;
}

void report_crossovers(const copy::cost_table& costs, const copy_case& which, const char* indent, result_file& file) {
  for (const bool hot : {true, false}) {
    const auto list = crossovers(costs, which, hot);
    std::printf("%sengine %s: %s\n", indent, hot ? "hot " : "cold", to_text(list).c_str());
    for (const auto& one : list)
      file.add_row({{"kind", "crossover"},
                    {"direction", direction_label(which)},
                    {"memory", memory_label(which)},
                    {"engine_hot", hot},
                    {"up_to_bytes", one.up_to_bytes == UINT64_MAX ? -1 : static_cast<std::int64_t>(one.up_to_bytes)},
                    {"method", copy::to_text(one.how)}});
  }
}

std::vector<alternative> explain(const copy::cost_table& costs, const copy_case& which, bool engine_hot,
                                 std::uint64_t bytes) {
  const choice taken = costs.pick(which.way, which.side, engine_hot, bytes);
  auto ways = copy::candidates(which.way, which.side);
  // A table may have widths that are no candidates of today, as the built-in one does.
  for (const auto& curve : costs.curves())
    if (curve.way == which.way && curve.side == which.side && std::find(ways.begin(), ways.end(), curve.how) == ways.end())
      ways.push_back(curve.how);
  if (std::find(ways.begin(), ways.end(), taken) == ways.end()) ways.push_back(taken);

  const double taken_ns = costs.cost(which.way, which.side, taken, bytes);
  std::vector<alternative> out;
  for (const auto& how : ways) {
    alternative one{how, costs.cost(which.way, which.side, how, bytes), {}, how == taken};
    if (one.is_taken) {
      one.why = std::isinf(one.expected_ns) ? "taken: no way in this table does this size, DMA can do every copy" : "taken";
    } else if (std::isinf(one.expected_ns)) {
      one.why = why_never(which, how, bytes);
    } else if (copy::needs_engine(how.how) && !engine_hot) {
      one.why = "the GPU engine is cold";
    } else if (one.expected_ns >= taken_ns) {
      one.why = format("%.2f x slower", one.expected_ns / taken_ns);
    } else {
      // Decisions are made in the middle of steps of a quarter octave.
      one.why = format("%.2f x faster here, but not in the middle of this step of sizes", taken_ns / one.expected_ns);
    }
    out.push_back(std::move(one));
  }
  std::stable_sort(out.begin(), out.end(), [](const alternative& a, const alternative& b) {
    return a.expected_ns < b.expected_ns || (a.expected_ns == b.expected_ns && a.is_taken && !b.is_taken);
  });
  return out;
}

}  // namespace pl::tools
