// SPDX-License-Identifier: Apache-2.0
// peerlane async: benchmarks of streams that signal each other. Two processes of its own, one GPU each where there are two.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <optional>

#include "cost.hpp"
#include "gpu_choice.hpp"
#include "launch.hpp"
#include "options.hpp"
#include "pingpong.hpp"
#include "report.hpp"
#include "station.hpp"
#include "text.hpp"
#include "tool.hpp"

namespace pl::async {
namespace {

using tools::tool_failure;

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const auto end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::uint64_t size_in(const char* option, const std::string& word) {
  const auto size = parse_size(word);
  if (!size || *size == 0 || *size % 8 != 0 || *size > (1u << 30))
    throw tool_failure(format("%s: \"%s\" is not a size of 8 bytes to 1G that 8 divides", option, word.c_str()));
  return *size;
}

std::uint64_t microseconds_in(const char* option, const std::string& word) {
  char* end = nullptr;
  const double value = std::strtod(word.c_str(), &end);
  if (word.empty() || *end != '\0' || !(value >= 0 && value <= 1e6))
    throw tool_failure(format("%s: \"%s\" is not a time of 0 to 1000000 us", option, word.c_str()));
  return static_cast<std::uint64_t>(value * 1e3);
}

struct asked {
  pingpong_plan plan;
  tools::common_options common;
  std::vector<int> gpus;
};

int gpu_count() {
  tools::must(tools::choose_gpu());
  const auto* cuda = tools::must(cu::driver());
  tools::must(cu::initialize(*cuda));
  int count = 0;
  cuda->cuDeviceGetCount(&count);
  if (count == 0) throw tool_failure(format("no GPU answers. %s", tools::kNoRealGpuAdvice));
  return count;
}

void silence_stdout() {
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere < 0) return;
  dup2(nowhere, STDOUT_FILENO);
  close(nowhere);
}

int live(const asked& what, const tools::invocation& call, int rank, p2p::fork_world& world) {
  std::optional<tools::report> report;
  if (rank == 0) report.emplace(call, what.common, "async");
  else silence_stdout();
  const auto with = world.join(rank);
  try {
    station_plan plan;
    plan.rank = rank;
    const auto at_gpu = static_cast<std::size_t>(rank);
    plan.gpu = what.gpus.empty() ? rank % gpu_count() : what.gpus[at_gpu % what.gpus.size()];
    for (const auto size : what.plan.sizes) plan.window_bytes = std::max(plan.window_bytes, size);
    station at(plan, *with);
    const std::string cpus = tools::place_thread(what.common, at.gpu().bus_id(), at.gpu().simulated());
    if (report) {
      report->describe(&at.gpu(), nullptr, cpus);
      report->file().set_parameter("iterations", what.plan.iterations);
      report->file().set_parameter("batch", what.plan.batch);
      report->file().set_parameter("repeats", what.plan.repeats);
    }
    const int code = run_pingpong(at, what.plan, report ? &report->file() : nullptr);
    if (report) report->write();
    return code;
  } catch (const std::exception& failure) { world.fail(rank, failure.what()); }
}

int run_pingpong_command(const tools::invocation& call) {
  asked what;
  std::string arms = "normal,peer,peer-kernel", sizes = "128", kernels = "0", gpus;
  std::int64_t iterations = what.plan.iterations, batch = what.plan.batch, repeats = what.plan.repeats;
  tools::command_parser parser(call, "Round trips of receive, kernel, send between two GPUs, by several ways.");
  parser.text("--arms", arms,
              "comma-separated: normal (CPU between all steps), peer (executor P), peer-kernel (its waits by a polling "
              "kernel), proxy (executor X)");
  parser.text("-s,--sizes", sizes, "message sizes in bytes, comma-separated, K/M allowed");
  parser.text("-k,--kernel", kernels, "busy times of the kernel in us, comma-separated");
  parser.integer("-i,--iterations", iterations, 10, 10'000'000, "round trips of each arm and case");
  parser.integer("-b,--batch", batch, 1, 80, "iterations queued at once");
  parser.integer("-r,--repeats", repeats, 1, 1000, "turns that the iterations of an arm are shared out to");
  parser.text("--gpus", gpus, "ordinals of the ranks' GPUs, comma-separated");
  parser.common(what.common, false);
  if (const auto code = parser.parse()) return *code;
  what.plan.arms.clear();
  for (const auto& word : split(arms)) what.plan.arms.push_back(arm_of(word));
  what.plan.sizes.clear();
  for (const auto& word : split(sizes)) what.plan.sizes.push_back(size_in("--sizes", word));
  what.plan.kernel_ns.clear();
  for (const auto& word : split(kernels)) what.plan.kernel_ns.push_back(microseconds_in("--kernel", word));
  if (!gpus.empty())
    for (const auto& word : split(gpus)) what.gpus.push_back(std::atoi(word.c_str()));
  what.plan.iterations = static_cast<int>(iterations);
  what.plan.batch = static_cast<int>(batch);
  what.plan.repeats = static_cast<int>(std::min(repeats, iterations));
  p2p::fork_world world(2);
  return p2p::run_forked(world, call.program, [&](int rank) { return live(what, call, rank, world); });
}

int run_cost_command(const tools::invocation& call) {
  cost_plan plan;
  tools::common_options common;
  std::int64_t operations = plan.operations, repeats = plan.repeats;
  tools::command_parser parser(call, "What each kind of queued operation costs, on the GPU and in its call.");
  parser.integer("-n,--operations", operations, 1, 250, "of a kind in a row");
  parser.integer("-r,--repeats", repeats, 1, 1000, "turns of each kind");
  parser.common(common);
  if (const auto code = parser.parse()) return *code;
  plan.operations = static_cast<int>(operations);
  plan.repeats = static_cast<int>(repeats);
  tools::report report(call, common, "async");
  const int count = gpu_count();
  const tools::gpu_session gpu(common.gpu, false);
  for (int other = 0; other < count && plan.peer < 0; ++other) {
    int can = 0;
    if (other != gpu.ordinal() && gpu.cuda().cuDeviceCanAccessPeer(&can, gpu.ordinal(), other) == 0 && can != 0)
      plan.peer = other;
  }
  report.describe(&gpu, nullptr, tools::place_thread(common, gpu.bus_id(), gpu.simulated()));
  const int code = run_cost(gpu, plan, &report.file());
  report.write();
  return code;
}

struct benchmark {
  const char *name, *help;
  int (*run)(const tools::invocation&);
};
constexpr benchmark kBenchmarks[] = {
    {"pingpong", "receive, kernel, send in turn between two GPUs", run_pingpong_command},
    {"cost", "what each kind of queued operation costs, on the GPU and in its call", run_cost_command},
};

}  // namespace
}  // namespace pl::async

namespace pl::tools {

int run_async(const invocation& call) {
  const std::string word = call.arguments.empty() ? "-h" : call.arguments[0];
  for (const auto& one : async::kBenchmarks) {
    if (word != one.name) continue;
    invocation inner = call;
    inner.program += std::string(" ") + one.name;
    inner.arguments.erase(inner.arguments.begin());
    return one.run(inner);
  }
  const bool is_help = word == "-h" || word == "--help";
  std::FILE* to = is_help ? stdout : stderr;
  if (!is_help) std::fprintf(to, "%s: there is no benchmark \"%s\"\n", call.program.c_str(), word.c_str());
  std::fprintf(to, "usage: %s BENCHMARK [options]\n\nbenchmarks:\n", call.program.c_str());
  for (const auto& one : async::kBenchmarks) std::fprintf(to, "  %-10s  %s\n", one.name, one.help);
  return is_help && !call.arguments.empty() ? kExitOk : kExitFailed;
}

}  // namespace pl::tools
