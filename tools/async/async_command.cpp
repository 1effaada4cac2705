// SPDX-License-Identifier: Apache-2.0
// peerlane async: benchmarks of streams that signal each other (docs/async-benchmarks.md).
#include <cstdio>

#include "commands.hpp"
#include "tool.hpp"

namespace pl::async {
namespace {

struct benchmark {
  const char *name, *help;
  int (*run)(const tools::invocation&);
};
constexpr benchmark kBenchmarks[] = {
    {"pingpong", "receive, kernel, send in turn between two GPUs", run_pingpong_command},
    {"economy", "what that takes of the CPUs, with threads that spin and threads that sleep", run_economy_command},
    {"stencil", "5-point Jacobi over blocks, the halos exchanged in streams, fields checked", run_stencil_command},
    {"stopped", "an exchange that goes on while both of its processes are stopped", run_stopped_command},
    {"stuck", "streams stuck on purpose, and the time until cancel has released them", run_stuck_command},
    {"poke", "words between a CPU and the front end of its GPU: latency and rate", run_poke_command},
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
