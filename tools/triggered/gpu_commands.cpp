// SPDX-License-Identifier: Apache-2.0
// cost, poke and kernel-put: one process, one GPU.
#include <functional>

#include "tools/common/options.hpp"
#include "tools/common/report.hpp"
#include "tools/triggered/arguments.hpp"
#include "tools/triggered/commands.hpp"
#include "tools/triggered/cost.hpp"
#include "tools/triggered/kernel_put.hpp"
#include "tools/triggered/poke.hpp"
#include "tools/triggered/ranks.hpp"

namespace pl::async {
namespace {

int run_on_gpu(const tools::invocation& call, const tools::common_options& common,
               const std::function<int(const tools::gpu_session& gpu, result_file& file)>& body) {
  tools::report report(call, common, "async");
  static_cast<void>(gpu_count());  // throws if there is none, with advice
  const tools::gpu_session gpu(common.gpu, false);
  report.describe(&gpu, nullptr, tools::place_thread(common, gpu.bus_id(), gpu.simulated()));
  const int code = body(gpu, report.file());
  report.write();
  return code;
}

// Another GPU that this one reaches; -1 without one.
int peer_of(const tools::gpu_session& gpu) {
  const int count = gpu_count();
  for (int other = 0; other < count; ++other) {
    int can = 0;
    if (other != gpu.ordinal() && gpu.cuda().cuDeviceCanAccessPeer(&can, gpu.ordinal(), other) == 0 && can != 0)
      return other;
  }
  return -1;
}

}  // namespace

int run_cost_command(const tools::invocation& call) {
  cost_plan plan;
  tools::common_options common;
  std::int64_t operations = plan.operations, repeats = plan.repeats;
  tools::command_parser parser(call, "Measures the cost of each kind of queued operation, on the GPU and in its call.");
  parser.integer("-n,--operations", operations, 1, 250, "operations of one kind in a row");
  parser.integer("-r,--repeats", repeats, 1, 1000, "repetitions of each kind, interleaved");
  parser.common(common);
  if (const auto code = parser.parse()) return *code;
  plan.operations = static_cast<int>(operations);
  plan.repeats = static_cast<int>(repeats);
  return run_on_gpu(call, common, [&](const tools::gpu_session& gpu, result_file& file) {
    plan.peer = peer_of(gpu);
    return run_cost(gpu, plan, &file);
  });
}

int run_poke_command(const tools::invocation& call) {
  poke_plan plan;
  tools::common_options common;
  std::int64_t pokes = plan.pokes, repeats = plan.repeats;
  tools::command_parser parser(call,
                               "Measures words between a CPU and the front end of its GPU: round-trip latency, and rate.");
  parser.integer("-n,--pokes", pokes, 1, 1'000'000, "timed stores of the CPU, for each method");
  parser.integer("-r,--repeats", repeats, 1, 1000, "repetitions of each length of list");
  std::string stuck = "0";
  parser.text("--stuck", "N,...", stuck, "numbers of other streams that wait at the same time, comma-separated");
  parser.common(common);
  if (const auto code = parser.parse()) return *code;
  plan.pokes = static_cast<int>(pokes);
  plan.stuck = integers_in("--stuck", stuck, 0, 1000);
  plan.repeats = static_cast<int>(repeats);
  return run_on_gpu(call, common,
                    [&](const tools::gpu_session& gpu, result_file& file) { return run_poke(gpu, plan, &file); });
}

int run_kernel_put_command(const tools::invocation& call) {
  kernel_put_plan plan;
  tools::common_options common;
  std::int64_t rounds = plan.rounds, repeats = plan.repeats, puts = plan.puts;
  std::string sizes = "64,8K,64K,1M", blocks = "1,8,64";
  tools::command_parser parser(
      call, "Measures puts that kernels start: latency by size and scope, rate by blocks, bytes checked.");
  parser.text("-s,--sizes", "SIZE,...", sizes, "bytes of a put, comma-separated, K/M allowed");
  parser.text("--blocks", "N,...", blocks, "numbers of blocks that post at the same time, comma-separated");
  parser.integer("-i,--iterations", rounds, 1, 1'000'000, "puts in a repetition, one after the other");
  parser.integer("-r,--repeats", repeats, 1, 1000, "repetitions of each case");
  parser.integer("-n,--puts", puts, 32, 100'000'000, "puts for each rate, by all blocks together");
  parser.common(common);
  if (const auto code = parser.parse()) return *code;
  tools::smaller_run smaller(parser);
  smaller.number("--iterations", rounds, 5);
  smaller.number("--repeats", repeats, 3);
  smaller.number("--puts", puts, 64);
  smaller.text("--blocks", blocks, "1,4");
  plan.rounds = static_cast<int>(rounds);
  plan.repeats = static_cast<int>(repeats);
  plan.puts = static_cast<int>(puts);
  plan.sizes = sizes_in("--sizes", sizes);
  plan.blocks = integers_in("--blocks", blocks, 1, 1024);
  return run_on_gpu(call, common,
                    [&](const tools::gpu_session& gpu, result_file& file) { return run_kernel_put(gpu, plan, &file); });
}

}  // namespace pl::async
