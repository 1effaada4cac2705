// SPDX-License-Identifier: Apache-2.0
// calibrate: measures the cost of each copy method on this machine and keeps it where the planner reads it.
#include "base/clock.hpp"
#include "base/text.hpp"
#include "copy/calibration.hpp"
#include "measure/progress.hpp"
#include "measure/text_table.hpp"
#include "tools/common/planner_session.hpp"
#include "tools/common/report.hpp"
#include "tools/copy/cost_view.hpp"

namespace pl::tools {
namespace {

struct calibrate_options {
  common_options common;
  std::int64_t budget_ms = 6000;
  std::uint64_t most_bytes = 256u << 20;
  bool dry_run = false;
  bool print = false;
};

constexpr int kMaxSeconds = 10;  // the time that the help text promises

std::optional<int> parse(const invocation& call, calibrate_options& options) {
  command_parser parser(call, "Measures the cost of each copy method on this machine, for the copy planner");
  parser.integer("--budget-ms", "MILLISECONDS", options.budget_ms, 1, 3'600'000, "Time limit for all measurements, ms");
  parser.size("--max", options.most_bytes, "Largest size to measure");
  parser.flag("--dry-run", options.dry_run, "Do not store the result");
  parser.flag("--print", options.print, "Print the calibration file's text");
  parser.common(options.common);
  if (const auto code = parser.parse()) return code;
  smaller_run smaller(parser);
  smaller.number("--budget-ms", options.budget_ms, 1000);
  smaller.size("--max", options.most_bytes, 8u << 20);
  if (options.most_bytes < 4096 || options.most_bytes > (1ull << 30)) throw tool_failure("--max must be from 4K to 1G");
  return std::nullopt;
}

copy::cost_table measure(const gpu_session& gpu, const calibrate_options& options) {
  planner_session planner(gpu);
  std::optional<progress> line;
  copy::calibration_options wanted;
  wanted.device_ordinal = gpu.ordinal();
  wanted.budget_ms = static_cast<unsigned>(options.budget_ms);
  wanted.most_bytes = options.most_bytes;
  wanted.progress = [&](const std::string& description, std::size_t done, std::size_t all) {
    if (!line) line.emplace("calibrate", all);
    line->start_step(done, description);
  };
  // Otherwise the first curves would be measured while the copy kernel starts.
  if (!planner.hold()) std::printf("note: without the copy kernel: %s\n", planner.why_not().c_str());
  return must(copy::calibrate(gpu.cuda(), *planner, wanted));
}

void report_curves(const copy::cost_table& costs, result_file& file) {
  for (const auto& curve : costs.curves())
    for (const auto& point : curve.points)
      file.add_row({{"kind", "cost"},
                    {"direction", copy::name_of(curve.way)},
                    {"side", copy::name_of(curve.side)},
                    {"method", copy::to_text(curve.option)},
                    {"size_bytes", point.bytes},
                    {"cost_ns", point.ns}});
}

void report_all_crossovers(const copy::cost_table& costs, result_file& file) {
  for (const auto& test_case : all_copy_cases()) {
    bool known = false;
    for (const auto& curve : costs.curves()) known = known || (curve.way == test_case.way && curve.side == test_case.side);
    if (!known) continue;
    std::printf("\n%s, %s memory\n", direction_label(test_case), memory_label(test_case));
    report_crossovers(costs, test_case, "  ", file);
  }
}

}  // namespace

int run_calibrate(const invocation& call) {
  calibrate_options options;
  if (const auto code = parse(call, options)) return *code;
  report out(call, options.common, "calibrate");
  auto& file = out.file();
  const gpu_session gpu(options.common.gpu);
  const std::string cpus = place_thread(options.common, gpu.bus_id(), gpu.simulated());
  out.describe(&gpu, nullptr, cpus);
  const std::string key = copy::machine_key(gpu.cuda(), gpu.ordinal());
  const std::string path = copy::calibration_path(key);
  if (!options.dry_run && path.empty())
    throw tool_failure("no folder for a calibration: set XDG_CACHE_HOME or HOME, or use --dry-run");
  if (!options.dry_run) must(copy::check_calibration_path(path));

  const std::uint64_t begin_ns = monotonic_ns();
  const auto costs = measure(gpu, options);
  const double taken_s = static_cast<double>(monotonic_ns() - begin_ns) / 1e9;
  file.set_parameter("budget_ms", options.budget_ms);
  file.set_parameter("machine_key", key);
  file.set_parameter("path", options.dry_run ? "" : path);
  file.set_parameter("seconds", taken_s);
  std::printf("machine: %s\nmeasured %s in %.1f s\n", key.c_str(), plural(costs.curves().size(), "curve").c_str(), taken_s);
  if (options.budget_ms < kMaxSeconds * 1000 && taken_s > kMaxSeconds)
    std::printf("note: more than %d s: the least number of repetitions takes longer than the budget here\n", kMaxSeconds);
  if (options.print) std::printf("\n%s", costs.text().c_str());
  report_curves(costs, file);
  report_all_crossovers(costs, file);
  if (options.dry_run) {
    std::printf("\nnot kept (--dry-run)\n");
  } else {
    must(copy::save_costs(costs, key, path));
    std::printf("\nkept in %s\n", path.c_str());
    // A planner reads the file of the first GPU.
    if (key != copy::machine_key(gpu.cuda(), 0))
      std::printf("note: GPU %d is of another kind than GPU 0, whose file planners read: this one has no effect\n",
                  gpu.ordinal());
  }
  out.write();
  return kExitOk;
}

}  // namespace pl::tools
