// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p/figures.hpp"

#include <algorithm>

#include "base/statistics.hpp"
#include "base/text.hpp"
#include "measure/result_file.hpp"

namespace pl::p2p {
namespace {

double quantile(std::vector<double> samples, double fraction) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  return quantile_of_sorted(samples, fraction);
}

const char* short_name(memory_kind kind) {
  switch (kind) {
    case memory_kind::host:
      return "H";
    case memory_kind::device:
      return "D";
    case memory_kind::managed_host:
      return "MH";
    case memory_kind::managed_device:
      return "MD";
  }
  return "?";
}

const char* name_of(benchmark which) {
  switch (which) {
    case benchmark::latency:
      return "latency";
    case benchmark::bandwidth:
      return "bw";
    case benchmark::bidirectional:
      return "bibw";
    case benchmark::multi_bandwidth:
      return "mbw_mr";
    case benchmark::multi_latency:
      return "multi_lat";
  }
  return "?";
}

}  // namespace

double figure_of(benchmark which, const measurement& of, double sample_ns) {
  if (is_latency(which)) return sample_ns / 2e3;
  if (sample_ns <= 0) return 0;
  const double directions = which == benchmark::bidirectional ? 2 : 1;
  const double bytes = static_cast<double>(of.size_bytes) * of.window * of.pairs * directions;
  return bytes / sample_ns * 1e3;
}

double headline(const measurement& of) { return quantile(of.batch_values, 0.5); }

double median_figure(benchmark which, const measurement& of) { return percentile_figure(which, of, 50); }

double percentile_figure(benchmark which, const measurement& of, double percent) {
  return figure_of(which, of, quantile(of.samples_ns, percent / 100));
}

std::string percentile_name(double percent) { return format("p%g", percent); }

nlohmann::json result_row(const settings& asked, const measurement& of) {
  // A latency is told one way, as the table has it; the time of a window as it is.
  std::vector<double> told_ns = of.samples_ns;
  if (is_latency(asked.which))
    for (auto& one : told_ns) one /= 2;
  nlohmann::json row = latency_fields(told_ns);
  row["benchmark"] = name_of(asked.which);
  row["size_bytes"] = of.size_bytes;
  row["iterations"] = of.repeated.iterations;
  row["warm_up"] = of.repeated.warm_up;
  row["batches"] = of.batch_values.size();
  row["window"] = of.window;
  row["pairs"] = of.pairs;
  row["send_memory"] = short_name(asked.source);
  row["receive_memory"] = short_name(asked.destination);
  const std::string figure = is_latency(asked.which) ? "latency_us" : "bandwidth_mb_per_s";
  row[figure] = headline(of);
  row[figure + "_lowest_batch"] = quantile(of.batch_values, 1e-9);
  row[figure + "_highest_batch"] = quantile(of.batch_values, 1);
  for (const double percent : asked.percentiles)
    row[figure + "_" + percentile_name(percent)] = percentile_figure(asked.which, of, percent);
  if (!is_latency(asked.which)) row["messages_per_s"] = 1e6 * headline(of) / static_cast<double>(of.size_bytes);
  if (asked.validate) {
    row["wrong_bytes"] = of.errors;
    row["validation"] = of.errors == 0 ? "Pass" : "Fail";
  }
  return row;
}

}  // namespace pl::p2p
