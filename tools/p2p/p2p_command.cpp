// SPDX-License-Identifier: Apache-2.0
// peerlane p2p: starts the processes and opens what each needs, in order.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>

#include "base/text.hpp"
#include "messaging/bootstrap/bootstrap.hpp"
#include "messaging/bootstrap/cpu_binding.hpp"
#include "messaging/bootstrap/foreign_settings.hpp"
#include "tools/common/gpu_choice.hpp"
#include "tools/common/report.hpp"
#include "tools/p2p/command_line.hpp"
#include "tools/p2p/gpu_buffers.hpp"
#include "tools/p2p/launch.hpp"
#include "tools/p2p/link_transport.hpp"
#include "tools/p2p/mpi_library.hpp"
#include "tools/p2p/nccl_transport.hpp"
#include "tools/p2p/runner.hpp"
#include "tools/p2p/staged_transport.hpp"
#include "tools/p2p/ucx_transport.hpp"

namespace pl::p2p {
namespace {

using tools::tool_failure;

bool asks_for_mpi(const settings& asked) { return asked.asks_for(arm::mpi) || asked.asks_for(arm::shim); }

// UCX writes its log to standard output, among rows that programs parse.
void keep_logs_off_stdout() { setenv("UCX_LOG_FILE", "stderr", 0); }

int gpu_count() {
  tools::must(tools::choose_gpu());
  const auto* cuda = tools::must(cu::driver());
  if (auto ready = cu::initialize(*cuda); !ready)
    throw tool_failure(format("no GPU answers: %s", ready.error().message.c_str()));
  int count = 0;
  cuda->cuDeviceGetCount(&count);
  return count;
}

std::unique_ptr<tools::gpu_session> open_gpu(const settings& asked, int local_rank) {
  if (!asked.needs_gpu()) return nullptr;
  const int count = gpu_count();
  if (count == 0) throw tool_failure(format("no GPU answers: the driver sees no GPU. %s", tools::kNoRealGpuAdvice));
  const auto index = static_cast<std::size_t>(local_rank);
  const int ordinal = asked.gpus.empty() ? local_rank % count : asked.gpus[index % asked.gpus.size()];
  return std::make_unique<tools::gpu_session>(ordinal, false);
}

// Where this rank's thread runs, as "0-15". The variable is --cpu for programs on the library. A launcher has bound its
// ranks already, so "auto" is for our own processes.
std::string place(const settings& asked, const rank_place& position, bool launched, const tools::gpu_session* gpu) {
  tools::common_options mine = asked.common;
  const std::string policy = messaging::cpu_policy_from_environment();
  if (mine.cpu == "auto" && !policy.empty() && policy != "near") {
    tools::must(messaging::bind_this_thread(policy, {}, {position.local_rank, 0}));
    return format_cpu_list(cpus_of_this_thread());
  }
  if (mine.cpu == "auto" && ((launched && policy.empty()) || gpu == nullptr)) mine.cpu = "none";
  if (mine.cpu != "auto" && mine.cpu != "none") {
    std::vector<std::string> items;
    for (std::size_t begin = 0; begin <= mine.cpu.size();) {
      const auto end = std::min(mine.cpu.find(',', begin), mine.cpu.size());
      items.push_back(mine.cpu.substr(begin, end - begin));
      begin = end + 1;
    }
    mine.cpu = items[static_cast<std::size_t>(position.local_rank) % items.size()];
  }
  return tools::place_thread(mine, gpu != nullptr ? gpu->bus_id() : "", gpu != nullptr && gpu->simulated());
}

// Collective: every rank's CPUs, by rank, as lines.
std::string places_of_all(messaging::bootstrap& group, const std::string& mine) {
  const auto all = tools::must(group.all_gather(std::as_bytes(std::span(mine))));
  std::string text;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    text += format("# CPUs of rank %zu: ", rank) +
            std::string(reinterpret_cast<const char*>(all[rank].data()), all[rank].size()) + "\n";
  return text;
}

std::unique_ptr<transport> open_arm(arm kind, const settings& asked, const tools::gpu_session* gpu,
                                    messaging::bootstrap& group) {
  const bool reaches_gpu = asked.needs_gpu() && !asked.stage;
  switch (kind) {
    case arm::ours:
      return open_link(gpu != nullptr ? &gpu->cuda() : nullptr, group);
    case arm::ucx:
      return open_ucx_transport(reaches_gpu, group, is_one_sided(asked.kind));
    case arm::shim:
      return open_mpi({.through_preload = true});
    case arm::nccl:
      return open_nccl({.sends_end_in_call = asked.validate || asked.cold}, *gpu, group);
    case arm::mpi:
      break;
  }
  auto mpi = open_mpi({});
  if (reaches_gpu && !mpi_takes_device_memory())
    throw tool_failure(
        format("%s does not take device memory: add --stage (copies through the host are then part of the "
               "timing), or use --via shim or ours",
               mpi->library().c_str()));
  return mpi;
}

void rejoin_scope(std::vector<contender>& arms, const settings& asked, const tools::gpu_session* gpu,
                  messaging::bootstrap& group) {
  for (const arm kind : asked.arms) {
    auto opened = open_arm(kind, asked, gpu, group);
    if (opened->size() != group.size())
      throw tool_failure(format("%s sees a job of %d, and the launcher started %d: it is not the launcher's MPI",
                                opened->library().c_str(), opened->size(), group.size()));
    const bool stages = asked.stage && (kind == arm::ucx || kind == arm::mpi);
    if (stages && gpu != nullptr) opened = stage_through_host(std::move(opened), *gpu);
    arms.push_back({kind, std::move(opened)});
  }
}

void show_plan(const std::string& places, const std::vector<contender>& arms) {
  std::fputs(places.c_str(), stdout);
  for (const auto& one : arms) {
    std::string text = "# via " + std::string(to_string(one.kind)) + "\n";
    std::string line;
    for (const char letter : one.world->plan()) {
      line += letter;
      if (letter != '\n') continue;
      text += "#   " + line;
      line.clear();
    }
    std::fputs(text.c_str(), stdout);
  }
}

void describe(tools::report& report, const settings& asked, const rank_place& position, const tools::gpu_session* gpu,
              const std::string& cpus) {
  report.describe(gpu, nullptr, cpus);
  auto& file = report.file();
  file.set_parameter("processes", position.size);
  file.set_parameter("window", asked.window);
  file.set_parameter("multiple_buffers", asked.multiple_buffers);
  file.set_parameter("validation", asked.validate);
  file.set_parameter("batches", asked.batches);
  file.set_parameter("cold", asked.cold);
  file.set_parameter("rotate", asked.rotate);
  file.set_parameter("consume", asked.consume);
  file.set_parameter("stage", asked.stage);
}

// How a rank joins the others, and its first step when it fails.
struct join_method {
  bool launched = false;  // by a launcher, which has placed the rank
  std::function<std::unique_ptr<messaging::bootstrap>()> meet;
  std::function<void(const std::string& words)> on_failure = [](const std::string&) {};
};

// One rank, from its first use of CUDA to the last line. GPU before MPI, because some MPIs check the current device
// when they start.
int live(const settings& asked, const tools::invocation& call, const rank_place& position, const join_method& way) {
  keep_logs_off_stdout();
  std::optional<tools::report> report;
  if (position.rank == 0) {
    report.emplace(call, asked.common, "p2p");
  } else {
    silence_stdout();
  }
  if (position.rank == 0 && asked.asks_for(arm::ours))
    for (const auto& line : messaging::unused_settings()) std::fprintf(stderr, "p2p: %s\n", line.c_str());
  const auto gpu = open_gpu(asked, position.local_rank);
  const std::string cpus = place(asked, position, way.launched, gpu.get());
  const auto group = way.meet();
  gpu_buffers memory(gpu.get());
  std::vector<contender> arms;
  try {
    const std::string places = asked.show_plan ? places_of_all(*group, cpus) : "";
    rejoin_scope(arms, asked, gpu.get(), *group);
    if (report) describe(*report, asked, position, gpu.get(), cpus);
    if (report && asked.show_plan) show_plan(places, arms);
    const int code = run_benchmark(asked, arms, memory, call.program, report ? &report->file() : nullptr);
    if (report) report->write();
    return code;
  } catch (const std::exception& failure) {
    way.on_failure(failure.what());
    throw;
  }
}

constexpr unsigned kTimeoutS = 120;  // a GPU's first context on a busy machine takes a while

std::unique_ptr<messaging::bootstrap> meet(messaging::bootstrap_options options) {
  options.timeout_s = kTimeoutS;
  options.report = [](const std::string& line) { std::fprintf(stderr, "p2p: %s\n", line.c_str()); };
  return tools::must(messaging::open_bootstrap(options));
}

int run_with_peer(const settings& asked, const tools::invocation& call) {
  if (asks_for_mpi(asked)) throw tool_failure("--via mpi needs mpirun on both machines instead of --listen and --peer");
  const bool listens = !asked.listen.empty();
  messaging::bootstrap_options options;
  options.rendezvous = listens ? asked.listen : asked.peer;
  if (listens && options.rendezvous.find(':') == std::string::npos) options.rendezvous = "*:" + options.rendezvous;
  options.rank = listens ? 0 : 1;
  options.size = 2;
  join_method way;
  way.meet = [&] { return meet(options); };
  return live(asked, call, {options.rank, 2, 0}, way);
}

// Ranks of a launcher find each other as the library's programs do; through the launcher's MPI if that is opened anyway, or
// if they run on several hosts without other means.
int run_launched(const settings& asked, const tools::invocation& call, const messaging::bootstrap_plan& plan) {
  const bool needs_mpi = asks_for_mpi(asked) || (plan.rendezvous.empty() && plan.launched_by.starts_mpi &&
                                                 plan.launched_by.ranks_here != plan.size);
  join_method way;
  way.launched = true;
  if (needs_mpi) way.meet = open_mpi_bootstrap;
  else way.meet = [] { return meet({}); };
  const int local_rank = plan.launched_by.local_rank >= 0 ? plan.launched_by.local_rank : plan.rank;
  return live(asked, call, {plan.rank, plan.size, local_rank}, way);
}

int run_forks(const settings& asked, const tools::invocation& call) {
  if (asks_for_mpi(asked))
    throw tool_failure(
        format("MPI has a launcher of its own: mpirun -n %d %s ... --via mpi", asked.processes, call.program.c_str()));
  if (!has_pairs(asked.kind) && !is_collective(asked.kind) && asked.processes != 2)
    throw tool_failure(format("this test needs exactly two processes, and -n says %d", asked.processes));
  fork_world world(asked.processes);
  return run_forked(world, call.program, [&](int rank) {
    join_method way;
    way.meet = [&] { return world.join(rank); };
    way.on_failure = [&](const std::string& words) { world.fail(rank, words); };
    return live(asked, call, {rank, asked.processes, rank}, way);
  });
}

}  // namespace
}  // namespace pl::p2p

namespace pl::tools {

int run_p2p(const invocation& call) {
  using p2p::settings;
  const auto parsed = p2p::parse_command(call);
  if (parsed.exit_code) return *parsed.exit_code;
  const settings& asked = parsed.asked;
  if (!asked.listen.empty() || !asked.peer.empty()) return p2p::run_with_peer(asked, call);
  // Without a launcher, or variables that replace one, the processes are started here.
  const auto plan = messaging::plan_bootstrap({});
  const bool nobody_says = plan.code() == ENODATA;
  if (!plan && asked.launch != settings::launch_kind::fork &&
      (!nobody_says || asked.launch == settings::launch_kind::environment))
    throw tool_failure(plan.error().message);
  if (!plan || asked.launch == settings::launch_kind::fork) return p2p::run_forks(asked, call);
  return p2p::run_launched(asked, call, *plan);
}

}  // namespace pl::tools
