// SPDX-License-Identifier: Apache-2.0
// copy: every way to move bytes between host and GPU memory by size, the planner's choice, and the envelope of the best.
#include "tools/copy/copy_command.hpp"

#include <cinttypes>
#include <random>

#include "base/text.hpp"
#include "tools/common/planner_session.hpp"

namespace pl::tools {
namespace {

std::optional<int> parse(const invocation& call, copy_options& options) {
  command_parser parser(call, "Measures copies by every method and by the planner at each size, in one run");
  std::vector<std::string> directions, memories;
  parser.size("--min", options.min_bytes, "Smallest size; sizes are doubled from it");
  parser.size("--max", options.max_bytes, "Largest size");
  parser.flag("--odd", options.odd, "Also measure sizes that are not powers of two");
  parser.list("--direction", directions, "h2d, d2h, d2d (same GPU), p2p (to the next GPU), all [all]");
  parser.list("--memory", memories, "Host memory: pinned, pageable, all [all]");
  parser.list("--methods", options.methods, "Only these: cpu_store, \"cpu_store x4\", cuMemcpy, planner, ... [all]");
  parser.integer("--samples", options.samples, 3, 10'000'000, "Maximum number of samples of each contender at each size");
  parser.integer("--time", "MILLISECONDS", options.time_ms, 1, 3'600'000, "Time limit for each size, ms");
  parser.integer("--seed", options.seed, 0, INT64_MAX, "Seed of the data that is verified; 0: a new one");
  parser.flag("--no-verify", options.no_verify, "Do not verify the copied data");
  parser.flag("--no-hold", options.no_hold, "Do not keep the copy kernel resident during the sweep");
  parser.flag("--all", options.all_columns, "Print a column for each method");
  parser.flag("--raw", options.keep_samples, "Keep raw samples in the result file");
  parser.flag("--beside", options.beside, "Measure how the copy kernel slows down other work, instead of the sweep");
  parser.flag("--async", options.async, "Measure lists of small copies, and asynchronous copies, instead of the sweep");
  parser.common(options.common);
  if (const auto code = parser.parse()) return code;
  smaller_run smaller(parser);
  smaller.number("--time", options.time_ms, 10);
  smaller.number("--samples", options.samples, 100);
  smaller.size("--max", options.max_bytes, 1u << 20);
  options.cases = must(parse_cases(directions, memories));
  if (options.min_bytes == 0 || options.min_bytes > options.max_bytes) throw tool_failure("--min must be from 1 to --max");
  if (options.max_bytes > (1ull << 30)) throw tool_failure("--max may be at most 1G");
  if (options.seed == 0) options.seed = static_cast<std::int64_t>(std::random_device{}());
  return std::nullopt;
}

}  // namespace

int run_copy(const invocation& call) {
  copy_options options;
  if (const auto code = parse(call, options)) return *code;
  report out(call, options.common, "copy");
  const gpu_session gpu(options.common.gpu);
  const std::string cpus = place_thread(options.common, gpu.bus_id(), gpu.simulated());
  out.describe(&gpu, nullptr, cpus);
  auto& file = out.file();
  file.set_parameter("min_bytes", options.min_bytes);
  file.set_parameter("max_bytes", options.max_bytes);
  file.set_parameter("time_ms", options.time_ms);
  file.set_parameter("samples", options.samples);
  file.set_parameter("seed", options.seed);
  file.set_parameter("verified", !options.no_verify);
  file.set_parameter("engine_held", !options.no_hold);
  file.set_parameter("lease_us", copy::planner::options_from_environment().engine.lease_us);
  if (options.beside) run_copy_beside(gpu, options, file);
  if (options.async) run_copy_async(gpu, options, file);
  if (!options.beside && !options.async) run_copy_sweep(gpu, options, file);
  out.write();
  return kExitOk;
}

}  // namespace pl::tools
