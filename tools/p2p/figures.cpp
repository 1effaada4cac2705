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

const char* name_of(benchmark kind) {
  switch (kind) {
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
    case benchmark::put_latency:
      return "put_latency";
    case benchmark::put_bandwidth:
      return "put_bw";
    case benchmark::get_latency:
      return "get_latency";
    case benchmark::get_bandwidth:
      return "get_bw";
    case benchmark::fetch_latency:
      return "fop_latency";
    case benchmark::compare_latency:
      return "cas_latency";
    case benchmark::barrier:
      return "barrier";
    case benchmark::broadcast:
      return "bcast";
    case benchmark::gather:
      return "gather";
    case benchmark::scatter:
      return "scatter";
    case benchmark::all_gather:
      return "allgather";
    case benchmark::reduce:
      return "reduce";
    case benchmark::all_reduce:
      return "allreduce";
    case benchmark::reduce_scatter:
      return "reduce_scatter";
    case benchmark::all_to_all:
      return "alltoall";
    case benchmark::all_to_all_v:
      return "alltoallv";
  }
  return "?";
}

}  // namespace

double figure_of(benchmark kind, const measurement& measured, double sample_ns) {
  if (is_collective(kind) || (is_one_sided(kind) && is_latency(kind))) return sample_ns / 1e3;
  if (is_latency(kind)) return sample_ns / 2e3;
  if (sample_ns <= 0) return 0;
  const double directions = kind == benchmark::bidirectional ? 2 : 1;
  const double bytes = static_cast<double>(measured.size_bytes) * measured.window * measured.pairs * directions;
  return bytes / sample_ns * 1e3;
}

double headline(const measurement& measured) { return quantile(measured.batch_values, 0.5); }

double median_figure(benchmark kind, const measurement& measured) { return percentile_figure(kind, measured, 50); }

double percentile_figure(benchmark kind, const measurement& measured, double percent) {
  return figure_of(kind, measured, quantile(measured.samples_ns, percent / 100));
}

std::string percentile_name(double percent) { return format("p%g", percent); }

nlohmann::json result_row(const settings& asked, const measurement& measured) {
  // A latency is reported one way, as in the table; the time of a window as it is.
  std::vector<double> told_ns = measured.samples_ns;
  if (is_latency(asked.kind) && !is_collective(asked.kind) && !is_one_sided(asked.kind))
    for (auto& one : told_ns) one /= 2;
  nlohmann::json row = latency_fields(told_ns);
  row["benchmark"] = name_of(asked.kind);
  row["size_bytes"] = measured.size_bytes;
  row["iterations"] = measured.repeated.iterations;
  row["warm_up"] = measured.repeated.warm_up;
  row["batches"] = measured.batch_values.size();
  row["window"] = measured.window;
  row["pairs"] = measured.pairs;
  row["send_memory"] = short_name(asked.source);
  row["receive_memory"] = short_name(asked.destination);
  const std::string figure = is_latency(asked.kind) ? "latency_us" : "bandwidth_mb_per_s";
  row[figure] = headline(measured);
  row[figure + "_lowest_batch"] = quantile(measured.batch_values, 1e-9);
  row[figure + "_highest_batch"] = quantile(measured.batch_values, 1);
  for (const double percent : asked.percentiles)
    row[figure + "_" + percentile_name(percent)] = percentile_figure(asked.kind, measured, percent);
  if (!is_latency(asked.kind)) row["messages_per_s"] = 1e6 * headline(measured) / static_cast<double>(measured.size_bytes);
  if (asked.validate) {
    row["wrong_bytes"] = measured.errors;
    row["validation"] = measured.errors == 0 ? "Pass" : "Fail";
  }
  return row;
}

}  // namespace pl::p2p
