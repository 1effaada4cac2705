// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/ranks.hpp"

#include <optional>

#include "base/text.hpp"
#include "tools/common/gpu_choice.hpp"
#include "tools/common/report.hpp"
#include "tools/p2p/launch.hpp"
#include "tools/triggered/network_namespace.hpp"

namespace pl::async {
namespace {

int gpu_of(const rank_plan& plan, int rank) {
  if (plan.gpus.empty()) return rank % gpu_count();
  return plan.gpus[static_cast<std::size_t>(rank) % plan.gpus.size()];
}

}  // namespace

int gpu_count() {
  tools::must(tools::choose_gpu());
  const auto* cuda = tools::must(cu::driver());
  tools::must(cu::initialize(*cuda));
  int count = 0;
  cuda->cuDeviceGetCount(&count);
  if (count == 0) throw tools::tool_failure(format("no GPU answers. %s", tools::kNoRealGpuAdvice));
  return count;
}

int run_ranks(const tools::invocation& call, const rank_plan& plan,
              const std::function<int(bench_rank& session, result_file* file)>& body) {
  p2p::fork_world world(plan.ranks);
  const auto as_rank = [&](int rank) -> int {
    std::optional<tools::report> report;
    if (rank == 0) report.emplace(call, plan.common, "async");
    else p2p::silence_stdout();
    const auto bootstrap = world.join(rank);
    try {
      if (!plan.networks.empty())
        enter_network_namespace(plan.networks[static_cast<std::size_t>(rank) % plan.networks.size()]);
      bench_rank session({rank, gpu_of(plan, rank), plan.window_bytes, plan.context}, *bootstrap);
      const std::string cpus = tools::place_thread(plan.common, session.gpu().bus_id(), session.gpu().simulated());
      if (report) report->describe(&session.gpu(), nullptr, cpus);
      try {
        const int code = body(session, report ? &report->file() : nullptr);
        if (report) report->write();
        return code;
      } catch (const std::exception& failure) {
        world.fail(rank, failure.what());  // before the end of the session, which waits for the other ranks
      }
    } catch (const std::exception& failure) { world.fail(rank, failure.what()); }
  };
  return p2p::run_forked(world, call.program, as_rank, plan.when_forked);
}

}  // namespace pl::async
