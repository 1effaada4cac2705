// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/compat_text.hpp"

#include <algorithm>
#include <cctype>

#include "base/text.hpp"
#include "measure/machine.hpp"

namespace pl::bandwidth {
namespace {

std::string compat_cell_text(const cell& one) {
  return one.state == cell_state::measured ? format("%10.2f", one.value) : format("%10s", "N/A");
}

std::string compat_matrix_text(const matrix& one) {
  int width = 2;
  for (const std::string& row : one.rows) width = std::max(width, static_cast<int>(row.size()));
  std::string out = one.title + "\n" + std::string(static_cast<std::size_t>(width), ' ');
  for (const std::string& column : one.columns) out += format("%10s", column.c_str());
  out += "\n";
  for (std::size_t row = 0; row < one.rows.size(); ++row) {
    out += format("%*s", width, one.rows[row].c_str());
    for (const cell& each : one.cells[row]) out += compat_cell_text(each);
    out += "\n";
  }
  return out;
}

std::string figure_lines(const matrix& one, const std::string& name, const compat_style& style) {
  const compat_figures figures = figures_of(one, style.original_mistakes);
  if (style.perf_formatter)
    return format("&&&& PERF %s %.2f %s\n\n", name.c_str(), figures.sum, one.unit == "ns" ? "-ns" : "+GB/s");
  std::string out = format("SUM %s %.2f\n", name.c_str(), figures.sum);
  if (has_variation(one)) out += format("COEFFICIENT_OF_VARIATION %s %.2f\n", name.c_str(), figures.variation);
  if (style.verbose) {
    out += format("MIN %s %.2f\n", name.c_str(), figures.min);
    out += format("MAX %s %.2f\n", name.c_str(), figures.max);
    out += format("AVG %s %.2f\n", name.c_str(), figures.average);
  }
  return out + "\n";
}

std::string end_name(const place& end) {
  return end.type == place::kind::host ? std::string("Host") : format("Device %d", end.index);
}

// Latencies have thousands of samples, and the original prints none.
std::string sample_lines(const matrix& one) {
  if (one.unit != "GB/s" || one.part == "total") return {};
  std::string out;
  for (const auto& row : one.cells)
    for (const cell& each : row) {
      if (each.state != cell_state::measured) continue;
      for (std::size_t i = 0; i < each.samples.size(); ++i)
        out += one.row_label == "all" ? format("\tSample %zu: Total Bandwidth : %.2f GB/s\n", i, each.samples[i])
                                      : format("\tSample %zu: %s -> %s: %.2f GB/s\n", i, end_name(each.path.source).c_str(),
                                               end_name(each.path.destination).c_str(), each.samples[i]);
    }
  return out;
}

bool has_results(const test_outcome& outcome) {
  return std::any_of(outcome.matrices.begin(), outcome.matrices.end(),
                     [](const matrix& one) { return !one.is_native_only; });
}

// "13.0 (13000)"
std::string version_text(int cuda_version) {
  return format("%d.%d (%d)", cuda_version / 1000, cuda_version % 1000 / 10, cuda_version);
}

}  // namespace

const char* const kCompatVersion = "v0.10.0";

bool has_variation(const matrix& one) { return one.unit == "GB/s" && (one.part.empty() || one.part == "total"); }

compat_figures figures_of(const matrix& one, bool original_mistakes) {
  compat_figures out;
  out.sum = sum_of(one);
  std::size_t measured = 0;
  bool missing = false;
  for (const auto& row : one.cells)
    for (const cell& each : row) {
      if (each.state != cell_state::measured) {
        missing = true;
        continue;
      }
      out.min = measured == 0 ? each.value : std::min(out.min, each.value);
      out.max = std::max(out.max, each.value);
      out.variation += describe(each.samples).coefficient_of_variation;
      ++measured;
    }
  if (measured > 0) out.average = out.sum / static_cast<double>(measured);
  if (measured > 0) out.variation /= static_cast<double>(measured);
  if (original_mistakes && missing) out.min = 0;
  return out;
}

std::string compat_device_name(const std::string& name, const std::string& bus_id) {
  unsigned domain = 0, bus = 0, device = 0;
  if (std::sscanf(bus_id.c_str(), "%x:%x:%x", &domain, &bus, &device) != 3) return name;
  return format("%s (%08x:%02x:%02x)", name.c_str(), domain, bus, device);
}

std::string compat_version_lines(const std::string& group_library) {
  std::string out = format("nvbandwidth Version: %s\nBuilt from Git version: peerlane-%s\n\n", kCompatVersion, kGitRevision);
  if (!group_library.empty()) out += format("MPI version: %s\n\n", group_library.c_str());
  return out;
}

std::string compat_list(std::span<const testcase> testcases) {
  // Since 0.9 without a rule below the head and without empty lines; a description's first line stands one tab further in.
  std::string out = "Index, Name:\n\tDescription\n";
  for (const testcase& one : testcases) {
    out += format("%d, %s:\n\t\t", one.index, one.key);
    for (const char* character = one.description; *character != '\0'; ++character)
      out += *character == '\n' ? std::string("\n\t") : std::string(1, *character);
    out += "\n";
  }
  return out;
}

std::string compat_head(const compat_environment& environment, const compat_style& style) {
  std::string out;
  if (style.small_buffer)
    out += "NOTE: below the default buffer size of 512 MiB start-up costs and caches may show in the results.\n\n";
  const std::string cuda = version_text(environment.cuda_version);
  out += format("CUDA Runtime Version: %s\nCUDA Driver Version (API): %s\nDriver Version: %s\n\n", cuda.c_str(),
                cuda.c_str(), environment.driver_version.c_str());
  if (!environment.processes.empty()) {
    for (const std::string& each : environment.processes) out += each + "\n";
    return out + "\n";
  }
  if (!style.verbose) return out;  // since 0.10
  out += environment.host + "\n";
  for (std::size_t i = 0; i < environment.devices.size(); ++i)
    out += format("Device %zu: %s\n", i, environment.devices[i].c_str());
  return out + "\n";
}

std::string compat_test(const test_outcome& outcome, const compat_style& style) {
  if (outcome.state == test_state::waived) return format("Waived: %s: %s\n", outcome.key.c_str(), outcome.reason.c_str());
  std::string out = format("Running %s.\n", outcome.key.c_str());
  if (style.verbose)
    for (const matrix& one : outcome.matrices)
      if (!one.is_native_only) out += sample_lines(one);
  for (const matrix& one : outcome.matrices) {
    if (one.is_native_only) continue;
    const std::string name = one.part.empty() ? outcome.key : outcome.key + "_" + one.part;
    out += compat_matrix_text(one) + "\n" + figure_lines(one, name, style);
  }
  const bool bad = outcome.state == test_state::failed || outcome.state == test_state::error;
  if (bad || !has_results(outcome)) out += format("ERROR: %s: %s\n\n", outcome.key.c_str(), outcome.reason.c_str());
  return out;
}

std::string compat_not_found(const std::string& asked) {
  const bool is_number =
      !asked.empty() && std::all_of(asked.begin(), asked.end(), [](unsigned char c) { return std::isdigit(c); });
  return is_number ? format("ERROR: Testcase index %s out of bound!\n", asked.c_str())
                   : format("ERROR: Testcase %s not found!\n", asked.c_str());
}

std::string compat_closing() {
  return "NOTE: The figures are what this run measured, not what the machine can do at best:\n"
         "clocks, topology, other work and the driver's version have their part in them.\n\n";
}

}  // namespace pl::bandwidth
