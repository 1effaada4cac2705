// SPDX-License-Identifier: Apache-2.0
// blocks: many scattered blocks between host and GPU memory, compared with the driver's calls, and while kernels run.
#include "tools/blocks/blocks_command.hpp"

#include <algorithm>
#include <cinttypes>
#include <random>

#include "base/text.hpp"
#include "tools/bandwidth/gpu_set.hpp"
#include "tools/bandwidth/judgement.hpp"
#include "tools/bandwidth/pcie_rate.hpp"

namespace pl::tools {

bool is_wanted_mover(const blocks_options& options, const std::string& name) {
  return options.methods.empty() || std::find(options.methods.begin(), options.methods.end(), name) != options.methods.end();
}

namespace {

// As text, so that a smaller run can replace the defaults.
struct lists_as_text {
  std::string sizes = "512,1K,2K,4K,8K,16K,32K,64K,256K,1M";
  std::string counts = "16,64,256,1024,4096,16384,100000";
  std::string direction = "all";
};

std::vector<std::uint64_t> parse_numbers(const char* option, const std::string& text, std::uint64_t least,
                                         std::uint64_t most, std::uint64_t step) {
  std::vector<std::uint64_t> out;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    const auto value = parse_size(word);
    if (!value || *value < least || *value > most || *value % step != 0)
      throw tool_failure(
          step > 1 ? format("%s: \"%s\" is not a size from %s to %s, a multiple of %" PRIu64, option, word.c_str(),
                            format_size(least).c_str(), format_size(most).c_str(), step)
                   : format("%s: \"%s\" is not a number from %" PRIu64 " to %" PRIu64, option, word.c_str(), least, most));
    out.push_back(*value);
    begin = end + 1;
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::vector<copy::direction> parse_directions(const std::string& text) {
  if (text == "all") return {copy::direction::to_host, copy::direction::to_device};
  if (text == "d2h") return {copy::direction::to_host};
  if (text == "h2d") return {copy::direction::to_device};
  throw tool_failure(format("--direction: \"%s\" is not one of d2h, h2d, all", text.c_str()));
}

void check_methods(const std::vector<std::string>& methods) {
  const std::vector<std::string> known{kOurs, kBatch, kEach, kGatherFew, kGatherAll};
  for (const auto& one : methods)
    if (std::find(known.begin(), known.end(), one) == known.end())
      throw tool_failure(format("--methods: \"%s\" is not one of %s, %s, %s, \"%s\", \"%s\"", one.c_str(), kOurs, kBatch,
                                kEach, kGatherFew, kGatherAll));
}

std::optional<int> parse(const invocation& call, blocks_options& options) {
  command_parser parser(call,
                        "Compares copies of many scattered blocks in one call with the driver's calls and copy kernels");
  lists_as_text given;
  parser.text("--sizes", "SIZE,...", given.sizes, "Block sizes, 16 B to 64 MiB, multiples of 16");
  parser.text("--counts", "N,...", given.counts, "Number of blocks in a list, 1 to 1000000");
  parser.text("--direction", "d2h|h2d|all", given.direction, "d2h, h2d, all");
  parser.list("--methods", options.methods,
              "Contenders to measure: peerlane, cuMemcpyBatchAsync, \"gather 16 SMs\", ... [all]");
  parser.size("--memory", options.memory_bytes, "Size of the longest list; the program uses five times this memory");
  parser.integer("--each", options.most_each, 0, 1'000'000,
                 "Longest list that is also copied with one cuMemcpyAsync for each block");
  parser.integer("--samples", options.samples, 3, 10'000'000, "Maximum number of samples of each contender at each point");
  parser.integer("--time", "MILLISECONDS", options.time_ms, 1, 3'600'000, "Time limit for each point, ms");
  parser.integer("--seed", options.seed, 0, INT64_MAX, "Seed of places and data; 0: a new one");
  parser.flag("--no-verify", options.no_verify, "Do not verify the copied data");
  parser.flag("--beside", options.beside,
              "Measure how lists slow down kernels that run at the same time, instead of the sweep");
  parser.flag("--urgent", options.urgent,
              "Measure short lists that are queued after a long one of --memory, instead of the sweep");
  parser.common(options.common);
  if (const auto code = parser.parse()) return code;
  smaller_run smaller(parser);
  smaller.text("--sizes", given.sizes, "512,4K,16K");
  smaller.text("--counts", given.counts, "16,256");
  smaller.size("--memory", options.memory_bytes, 4u << 20);
  smaller.number("--time", options.time_ms, 10);
  smaller.number("--samples", options.samples, 100);
  options.sizes = parse_numbers("--sizes", given.sizes, 16, 64u << 20, 16);
  for (const std::uint64_t count : parse_numbers("--counts", given.counts, 1, 1'000'000, 1)) options.counts.push_back(count);
  options.directions = parse_directions(given.direction);
  check_methods(options.methods);
  if (options.memory_bytes > (std::uint64_t{64} << 30)) throw tool_failure("--memory may be at most 64G");
  if (options.seed == 0) options.seed = static_cast<std::int64_t>(std::random_device{}());
  return std::nullopt;
}

link_limit find_link(const gpu_session& gpu) {
  link_limit out;
  if (gpu.simulated()) return out;
  auto gpus = bandwidth::gpu_set::open(gpu.cuda());
  if (!gpus) return out;
  const auto links = bandwidth::read_links(**gpus);
  const auto ordinal = static_cast<std::size_t>(gpu.ordinal());
  if (ordinal >= links.gpus.size() || links.gpus[ordinal].coherent_host) return out;  // NVLink-C2C is no PCIe link
  const auto& facts = links.gpus[ordinal];
  // An idle link may run slower and speeds up under load.
  const unsigned generation = std::max(facts.pcie_generation_now, facts.pcie_generation_max), width = facts.pcie_width_now;
  const double raw = bandwidth::pcie_raw_gb_per_s(generation, width);
  if (raw == 0) return out;
  out.to_host_gb_per_s = raw * bandwidth::pcie_write_efficiency(generation, facts.pcie_payload_bytes);
  out.to_device_gb_per_s = raw * bandwidth::pcie_completion_efficiency(generation, facts.pcie_payload_bytes);
  out.text = bandwidth::pcie_text(generation, width);
  return out;
}

}  // namespace

int run_blocks(const invocation& call) {
  blocks_options options;
  if (const auto code = parse(call, options)) return *code;
  report out(call, options.common, "blocks");
  const gpu_session gpu(options.common.gpu);
  const link_limit link = find_link(gpu);
  gpu.make_current();
  const std::string cpus = place_thread(options.common, gpu.bus_id(), gpu.simulated());
  out.describe(&gpu, nullptr, cpus);
  auto& file = out.file();
  file.set_parameter("memory_bytes", options.memory_bytes);
  file.set_parameter("time_ms", options.time_ms);
  file.set_parameter("samples", options.samples);
  file.set_parameter("seed", options.seed);
  file.set_parameter("verified", !options.no_verify);
  file.set_parameter("link", link.text);
  file.set_parameter("link_to_device_gb_per_s", link.to_device_gb_per_s);
  file.set_parameter("link_to_host_gb_per_s", link.to_host_gb_per_s);
  mover_set movers(gpu);
  if (options.beside) run_blocks_beside(movers, options, file);
  if (options.urgent) run_urgent_list(movers, options, file);
  bool passed = true;
  if (!options.beside && !options.urgent) passed = run_block_sweep(movers, options, link, file);
  file.set_pass(passed);
  out.write();
  return passed ? kExitOk : kExitFailed;
}

}  // namespace pl::tools
