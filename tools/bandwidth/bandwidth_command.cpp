// SPDX-License-Identifier: Apache-2.0
// bandwidth: links between host and GPU memory measured and judged; the original's program under its name.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "base/text.hpp"
#include "measure/machine.hpp"
#include "tools/bandwidth/bandwidth_options.hpp"
#include "tools/bandwidth/compat_json.hpp"
#include "tools/bandwidth/native_text.hpp"
#include "tools/bandwidth/session.hpp"
#include "tools/common/gpu_choice.hpp"
#include "tools/common/nvml.hpp"

namespace pl::tools {
namespace {

using namespace pl::bandwidth;

std::unique_ptr<gpu_set> open_gpus() {
  const auto* cuda = must(cu::driver());
  if (auto ready = cu::initialize(*cuda); !ready)
    throw tool_failure(format("no GPU answers: %s", ready.error().message.c_str()));
  auto gpus = must(gpu_set::open(*cuda));
  if (gpus->count() == 0) throw tool_failure(format("no GPU answers: the driver sees no GPU. %s", kNoRealGpuAdvice));
  return gpus;
}

std::string host_name() {
  char name[256] = "unknown";
  gethostname(name, sizeof name - 1);
  return name;
}

// "Process 0 (node1): device 0: NVIDIA H100 (00000000:0a:00)" of every process. Collective.
std::vector<std::string> process_lines(gpu_set& gpus, group& ranks) {
  const int gpu = ranks.local_rank() % gpus.count();
  const std::string mine = format("device %d: %s", gpu, compat_device_name(gpus.name(gpu), gpus.bus_id(gpu)).c_str());
  const auto all = must(ranks.all_gather(std::as_bytes(std::span(mine))));
  std::vector<std::string> out;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const auto& bytes = all[static_cast<std::size_t>(rank)];
    const std::string theirs(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    out.push_back(format("Process %d (%s): %s", rank, ranks.host_of(rank).c_str(), theirs.c_str()));
  }
  return out;
}

compat_environment describe(gpu_set& gpus, group* ranks, const machine_facts& facts) {
  compat_environment out;
  out.cuda_version = facts.cuda_version;
  out.driver_version = facts.driver_version;
  out.host = host_name();
  for (int gpu = 0; gpu < gpus.count(); ++gpu) out.devices.push_back(compat_device_name(gpus.name(gpu), gpus.bus_id(gpu)));
  if (ranks->size() == 1) return out;
  out.group_library = ranks->library();
  out.processes = process_lines(gpus, *ranks);
  return out;
}

void print_native_head(gpu_set& gpus, const group& ranks, const bandwidth_options& options) {
  for (int gpu = 0; gpu < gpus.count(); ++gpu)
    std::printf("GPU %d: %s, %s, %u multiprocessors\n", gpu, gpus.name(gpu).c_str(), gpus.bus_id(gpu).c_str(),
                gpus.multiprocessors(gpu));
  if (ranks.size() > 1) std::printf("%d processes, %s\n", ranks.size(), ranks.library().c_str());
  std::printf("%s of at least %s; GB/s are 10^9 bytes a second\n\n", plural(options.test.settings.samples, "sample").c_str(),
              (plural(options.test.settings.copies, "copy", "copies") + (options.test.settings.samples == 1 ? "" : " each"))
                  .c_str());
}

void set_parameters(result_file& file, const bandwidth_options& options) {
  file.set_parameter("sizes_bytes", options.sizes);
  file.set_parameter("samples", options.test.settings.samples);
  file.set_parameter("copies", options.test.settings.copies);
  file.set_parameter("warm_up", options.test.settings.warm_up);
  file.set_parameter("verified", options.test.settings.verify);
  file.set_parameter("seed", options.test.settings.seed);
  file.set_parameter("use_mean", options.test.use_mean);
  file.set_parameter("near_gpu", !options.test.disable_affinity);
  file.set_parameter("host_memory", to_string(options.test.host));
  file.set_parameter("numa_node", options.test.numa_node);
  file.set_parameter("sm_count", options.test.sm_count);
  file.set_parameter("threads", options.test.threads);
  file.set_parameter("original_mistakes", options.test.original_mistakes);
  file.set_parameter("judged", options.test.judge);
  file.set_parameter("baseline", options.baseline_path);
  file.set_parameter("pair", options.pair);
  file.set_parameter("pairs_wanted", options.pairs_wanted);
  file.set_parameter("confidential", options.test.confidential);
  file.set_parameter("threshold_percent", options.threshold_percent);
}

// Says that the GPU is simulated: before text, and to stderr beside JSON.
void print_head(gpu_set& gpus, const group& ranks, const bandwidth_options& options, const compat_environment& environment) {
  if (ranks.rank() != 0) return;
  const bool compat_object = options.compat && options.json_to_stdout;
  if (gpus.simulated() && compat_object) std::fprintf(stderr, "%s\n", kSimulatedHeader);
  if (compat_object) return;
  print_header_if_simulated();
  if (!options.compat) return print_native_head(gpus, ranks, options);
  const compat_style style{.verbose = options.verbose, .small_buffer = options.sizes[0] < (512u << 20)};
  std::fputs((compat_version_lines(environment.group_library) + compat_head(environment, style)).c_str(), stdout);
}

// Chooses ranks: those whose GPU has one of the UUIDs. Collective.
pair_choice choose_ranks(gpu_set& gpus, group& ranks, const bandwidth_options& options) {
  const std::string mine = gpus.uuid(ranks.local_rank() % gpus.count());
  const auto all = must(ranks.all_gather(std::as_bytes(std::span(mine))));
  std::vector<int> found;
  for (const std::string& asked : options.pair)
    for (int rank = 0; rank < ranks.size(); ++rank) {
      const auto& bytes = all[static_cast<std::size_t>(rank)];
      if (std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) == asked) found.push_back(rank);
    }
  if (found.size() != 2 || found[0] == found[1])
    throw tool_failure(format("--pair: the UUIDs are those of %s of %d processes: give those of two (nvidia-smi -L)",
                              plural(found.size(), "process", "processes").c_str(), ranks.size()));
  return {true, {{found[0], found[1]}, {found[1], found[0]}}};
}

pair_choice choose_pairs(gpu_set& gpus, group& ranks, const bandwidth_options& options) {
  if (!options.pair.empty())
    return ranks.size() > 1 ? choose_ranks(gpus, ranks, options) : must(choose_pair(gpus, options.pair[0], options.pair[1]));
  if (options.pairs_wanted < 0) return {};
  if (ranks.size() > 1) return sample_pairs(ranks.size(), options.pairs_wanted, options.test.settings.seed);
  if (!options.compat) return sample_pairs(gpus.count(), options.pairs_wanted, options.test.settings.seed);
  // As in the original, where sampling is one of the multi-node tests.
  if (options.pairs_wanted > 0)
    std::fprintf(stderr,
                 "WARNING: --targetNumPairs is for tests of several processes and ignored here; --pair chooses two GPUs\n");
  return {};
}

int measure(const invocation& call, bandwidth_options options) {
  std::optional<baseline> reference;
  if (!options.baseline_path.empty()) reference = must(baseline::load(options.baseline_path, options.threshold_percent));
  must(choose_gpu());  // forks, which MPI does not like once it runs
  const auto ranks = must(open_group(options.ranks));
  const auto selection = must(select_testcases(options, ranks->size()));
  common_options common;
  common.json_path = options.json_path;
  if (options.json_to_stdout && !options.compat) common.json_path = "-";
  report out(call, common, "bandwidth");
  const auto gpus = open_gpus();
  options.test.pairs = choose_pairs(*gpus, *ranks, options);
  if (is_confidential().value_or(false)) options.test.confidential = "confidential computing is on (NVML)";
  machine_facts facts = describe_host();
  describe_gpu(facts, gpus->cuda(), 0);
  out.file().set_machine(facts);
  set_parameters(out.file(), options);
  out.file().set_unit("value", "the row's unit");
  const compat_environment environment = describe(*gpus, ranks.get(), facts);
  print_head(*gpus, *ranks, options, environment);
  bandwidth_session session(options,
                            {.gpus = *gpus,
                             .ranks = ranks->size() > 1 ? ranks.get() : nullptr,
                             .reference = reference ? &*reference : nullptr,
                             .environment = environment},
                            out);
  return session.run(selection);
}

int list(const bandwidth_options& options) {
  if (!options.compat) {
    std::fputs(compat_list(all_testcases()).c_str(), stdout);
    return kExitOk;
  }
  if (options.json_to_stdout) return kExitOk;  // as the original
  std::fputs((compat_version_lines("") + compat_list(original_testcases())).c_str(), stdout);
  return kExitOk;
}

// On the simulated GPU, where numbers mean nothing, all testcases with 512 MiB would take minutes.
void make_smaller(bandwidth_options& options) {
  constexpr std::uint64_t kSimulatedBytes = 1u << 20;
  constexpr unsigned kSimulatedSamples = 2;
  const auto chosen = choose_gpu();
  if (options.has_size || !chosen || *chosen != gpu_kind::simulated) return;
  options.test.bytes = kSimulatedBytes;
  options.sizes = {kSimulatedBytes};
  options.test.long_list_bytes = 16u << 20;
  if (!options.has_samples) options.test.settings.samples = kSimulatedSamples;
  std::fprintf(stderr, "note: smaller than by default, as the GPU is simulated: -b 1M%s; options given are kept\n",
               options.has_samples ? "" : " -i 2");
}

}  // namespace

int run_bandwidth(const invocation& call) {
  bandwidth_options options;
  if (const auto code = parse_options(call, options)) return *code;
  if (options.list) return list(options);
  make_smaller(options);
  try {
    return measure(call, options);
  } catch (const tool_failure& failure) {
    // With -j, errors are JSON too.
    if (options.compat && options.json_to_stdout) std::fputs(compat_json({}, {}, {}, failure.what(), "").c_str(), stdout);
    throw;
  }
}

}  // namespace pl::tools
