// SPDX-License-Identifier: Apache-2.0
// peerlane async: benchmarks of streams that signal each other (docs/async-benchmarks.md).
#include "tools/common/subcommand.hpp"
#include "tools/triggered/commands.hpp"

namespace pl::async {
namespace {

constexpr tools::subcommand kBenchmarks[] = {
    {"pingpong", "round trips of receive, kernel, send between two GPUs", run_pingpong_command},
    {"economy", "CPU use of the ping-pong, with threads that spin and with threads that sleep", run_economy_command},
    {"stencil", "5-point Jacobi over blocks, halos exchanged in streams, fields checked", run_stencil_command},
    {"multigrid", "Poisson's equation by multigrid V-cycles, halos exchanged in streams, fields checked",
     run_multigrid_command},
    {"collectives", "collectives in streams and graphs, beside NCCL, every result checked", run_collectives_command},
    {"stopped", "an exchange that continues while both of its processes are stopped", run_stopped_command},
    {"stuck", "streams that are stuck on purpose, and the time until cancel releases them", run_stuck_command},
    {"poke", "words between a CPU and the front end of its GPU: latency and rate", run_poke_command},
    {"cost", "cost of each kind of queued operation, on the GPU and in its call", run_cost_command},
    {"kernel-put", "puts that kernels start: latency by size and scope, rate by blocks, bytes checked",
     run_kernel_put_command},
};

}  // namespace
}  // namespace pl::async

namespace pl::tools {

int run_async(const invocation& call) { return run_subcommand(call, "benchmark", async::kBenchmarks); }

}  // namespace pl::tools
