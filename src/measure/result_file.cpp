// SPDX-License-Identifier: Apache-2.0
#include "measure/result_file.hpp"

#include <cstdio>

#include "base/text.hpp"
#include "base/whole_file.hpp"

namespace pl {

using nlohmann::json;

json to_json(const machine_facts& facts) {
  return json{{"peerlane_version", facts.peerlane_version},
              {"git_revision", facts.git_revision},
              {"utc_date", facts.utc_date},
              {"kernel", facts.kernel},
              {"cpu_model", facts.cpu_model},
              {"cpu_count", facts.cpu_count},
              {"cpu_clock_mhz", facts.cpu_clock_mhz},
              {"cpus", facts.cpus},
              {"gpu_name", facts.gpu_name},
              {"gpu_bus_id", facts.gpu_bus_id},
              {"gpu_count", facts.gpu_count},
              {"gpu_sm_clock_mhz", facts.gpu_sm_clock_mhz},
              {"gpu_memory_clock_mhz", facts.gpu_memory_clock_mhz},
              {"driver_version", facts.driver_version},
              {"driver_flavor", facts.driver_flavor},
              {"cuda_version", facts.cuda_version},
              {"backend", facts.backend},
              {"mapping_type", facts.mapping_type},
              {"copy_to_device", facts.copy_to_device},
              {"copy_to_host", facts.copy_to_host},
              {"simulated", facts.simulated}};
}

json latency_fields(std::span<const double> samples_ns) {
  const summary all = summarize(samples_ns);
  return json{{"latency_ns_p50", all.p50},       {"latency_ns_p90", all.p90}, {"latency_ns_p99", all.p99},
              {"latency_ns_min", all.min},       {"latency_ns_max", all.max}, {"latency_ns_mean", all.mean},
              {"latency_ns_stddev", all.stddev}, {"sample_count", all.count}};
}

result_file::result_file(std::string tool, std::vector<std::string> command_line)
    : tool_(std::move(tool)), command_line_(std::move(command_line)) {
  // Results are published, so the program's path on the machine is left out.
  if (!command_line_.empty()) command_line_[0].erase(0, command_line_[0].find_last_of('/') + 1);
}

void result_file::set_machine(const machine_facts& facts) {
  machine_ = pl::to_json(facts);
  simulated_ = facts.simulated;
}

void result_file::set_parameter(const std::string& name, json value) { parameters_[name] = std::move(value); }
void result_file::set_unit(const std::string& field, const std::string& unit) { units_[field] = unit; }

void result_file::add_samples(const std::string& series, std::span<const double> samples, const std::string& unit) {
  json kept = json::array();
  const std::size_t total = samples.size();
  const std::size_t keep = std::min(total, kMaxSamplesPerSeries);
  // Evenly spaced in time, first and order kept, so that drifts stay visible.
  // Tenths of a nanosecond: the counter's tick is coarser, and the files are kept. Other units may be small.
  const double steps = unit == "ns" ? 10 : 1e6;
  for (std::size_t i = 0; i < keep; ++i) kept.push_back(std::round(samples[i * total / keep] * steps) / steps);
  samples_.push_back({{"series", series},
                      {"samples_taken", total},
                      {"samples_kept", keep},
                      {"thinned", keep < total},
                      {"samples_" + unit, std::move(kept)}});
}

json result_file::to_json() const {
  return json{{"schema", kResultSchema},
              {"tool", tool_},
              {"command_line", command_line_},
              {"simulated", simulated_},
              {"passed", passed_},
              {"machine", machine_},
              {"parameters", parameters_},
              {"units", units_},
              {"notes", notes_},
              {"rows", rows_},
              {"samples", samples_}};
}

std::string result_file::text() const { return to_json().dump(1, ' ', false, json::error_handler_t::replace) + "\n"; }

status result_file::write(const std::string& path) const {
  const status written = write_whole_file(path, text());
  if (written) return {};
  return failure{written.code(), format("cannot write the results to %s: %s; choose another --json FILE", path.c_str(),
                                        written.error().message.c_str())};
}

}  // namespace pl
