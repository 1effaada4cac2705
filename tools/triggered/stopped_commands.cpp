// SPDX-License-Identifier: Apache-2.0
// stopped and stuck: what must hold when the CPUs are away, and when signals do not come.
#include "tools/triggered/commands.hpp"
#include "tools/triggered/ranks.hpp"
#include "tools/triggered/stopped.hpp"
#include "tools/triggered/stuck.hpp"

namespace pl::async {

int run_stopped_command(const tools::invocation& call) {
  stopped_plan plan;
  rank_plan ranks;
  std::int64_t iterations = plan.iterations, patience = plan.timeout_ms;
  std::uint64_t bytes = plan.bytes;
  tools::command_parser parser(call, "Shows an exchange that continues while both of its processes are stopped.");
  parser.integer("-i,--iterations", iterations, 1, 300, "round trips, all queued before the processes are stopped");
  parser.size("-s,--size", bytes, "message size, a multiple of 8, 1M at most");
  parser.integer("--patience", "MILLISECONDS", patience, 1, 60'000,
                 "how long the processes stay stopped at most if the exchange does not end, ms");
  parser.common(ranks.common, false);
  if (const auto code = parser.parse()) return *code;
  if (bytes == 0 || bytes % 8 != 0 || bytes > (1u << 20)) throw tools::tool_failure("--size: a multiple of 8, 1M at most");
  plan.iterations = static_cast<int>(iterations);
  plan.timeout_ms = static_cast<int>(patience);
  plan.bytes = bytes;
  ranks.window_bytes = bytes;
  stopped_watcher watcher(plan);
  ranks.when_forked = [&] { watcher.start(); };
  return run_ranks(call, ranks, [&](bench_rank& session, result_file* file) {
    return run_stopped(session, plan, watcher.board(), file);
  });
}

int run_stuck_command(const tools::invocation& call) {
  stuck_plan plan;
  rank_plan ranks;
  std::int64_t streams = plan.streams, repeats = plan.repeats;
  tools::command_parser parser(
      call, "Makes streams that are stuck on purpose, and measures the time until cancel has released them all.");
  parser.integer("-n,--streams", streams, 1, 512, "number of streams, each waiting in its own channel");
  parser.integer("-r,--repeats", repeats, 1, 1000, "repetitions");
  parser.common(ranks.common, false);
  if (const auto code = parser.parse()) return *code;
  plan.streams = static_cast<int>(streams);
  plan.repeats = static_cast<int>(repeats);
  ranks.context.channels = 2 * static_cast<unsigned>(streams);  // those of the previous repetition are still being closed
  return run_ranks(call, ranks, [&](bench_rank& session, result_file* file) { return run_stuck(session, plan, file); });
}

}  // namespace pl::async
