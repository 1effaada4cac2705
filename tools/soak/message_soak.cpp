// SPDX-License-Identifier: Apache-2.0
// The soak's part for messages: processes exchange random messages, in pairs and by collectives, and every byte is compared.
// In some jobs one process is killed; the others must end by themselves, with an error, and leave no process.
#include <signal.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <optional>

#include "base/text.hpp"
#include "tools/common/command_process.hpp"
#include "tools/soak/soak.hpp"

namespace pl::soak {
namespace {

constexpr std::uint64_t kLeftMs = 60'000;  // for the last processes of a job whose launcher has ended

std::vector<std::string> random_collective(std::mt19937_64& random) {
  static const char* const kCollectives[] = {"barrier", "bcast",     "gather",         "scatter",  "allgather",
                                             "reduce",  "allreduce", "reduce_scatter", "alltoall", "alltoallv"};
  const std::string kind = kCollectives[random() % std::size(kCollectives)];
  std::vector<std::string> out = {
      "p2p", kind, "-n", std::to_string(2 + random() % 3), "-i", std::to_string(10 + random() % 60), "-x", "2"};
  if (kind == "barrier") return out;
  const char* const memory = random() % 2 == 0 ? "H" : "D";
  const std::uint64_t top = std::uint64_t{4} << (random() % 15);
  out.insert(out.end(), {memory, memory, "-m", format("4:%llu", static_cast<unsigned long long>(top)), "-c"});
  return out;
}

std::vector<std::string> random_benchmark(std::mt19937_64& random) {
  if (random() % 3 == 0) return random_collective(random);
  static const char* const kBenchmarks[] = {"latency", "bw", "bibw"};
  static const char* const kMemories[] = {"H", "D"};
  const std::uint64_t top = std::uint64_t{1} << (3 + random() % 17);
  return {"p2p",
          kBenchmarks[random() % 3],
          kMemories[random() % 2],
          kMemories[random() % 2],
          "-m",
          format("1:%llu", static_cast<unsigned long long>(top)),
          "-i",
          std::to_string(10 + random() % 60),
          "-x",
          "2",
          "-c"};
}

std::string words(const std::vector<std::string>& arguments) {
  std::string out = "peerlane";
  for (const auto& one : arguments) out += " " + one;
  return out;
}

// A pair that waits for the CPUs writes a line for each size in the end; one that hangs writes nothing more.
std::optional<int> wait_while_it_writes(const plan& run, findings& seen, command_process& pair, const std::string& log) {
  std::error_code ignored;
  for (auto before = std::filesystem::file_size(log, ignored);;) {
    if (const auto state = wait_for(run, seen, pair, kHungMs)) return state;
    const auto now = std::filesystem::file_size(log, ignored);
    if (now == before) return std::nullopt;
    before = now;
  }
}

void undisturbed(const plan& run, command_process& pair, const std::string& command, const std::string& log,
                 findings& seen) {
  const auto state = wait_while_it_writes(run, seen, pair, log);
  if (is_interrupted(run)) return;
  seen.count("pairs run to their end");
  if (!state) seen.violation("hung: " + command);
  else if (*state != 0) seen.violation(format("%s: %s", state_text(*state).c_str(), command.c_str()));
}

void disturbed(const plan& run, command_process& pair, const std::string& command, const std::string& log,
               std::mt19937_64& random, findings& seen) {
  const auto ranks = pair.children();
  if (ranks.empty()) return undisturbed(run, pair, command, log, seen);  // over already
  const pid_t victim = ranks[random() % ranks.size()];
  if (kill(victim, SIGKILL) != 0) return undisturbed(run, pair, command, log, seen);
  seen.count("ranks killed");
  const auto state = wait_for(run, seen, pair, kHungMs);
  if (is_interrupted(run)) return;
  if (!state) seen.violation("a rank was killed, and the others still run after 300 s: " + command);
  else if (!pair.group_ends_within_ms(kLeftMs))
    seen.violation("a rank was killed, and a process of the job is left: " + command);
  else if (WIFSIGNALED(*state) && WTERMSIG(*state) != SIGKILL)
    seen.violation(
        format("a rank was killed, and the launcher ended by %s: %s", state_text(*state).c_str(), command.c_str()));
}

}  // namespace

void run_messages(const plan& run, findings& seen) {
  std::mt19937_64 random(run.seed * 3 + 1);
  const std::string log = run.folder + "/messages.log";
  while (!is_over(run)) {
    const auto arguments = random_benchmark(random);
    command_process pair({arguments, log, 0, {}});
    if (random() % 3 == 0) {
      pause_ms(run, 20 + random() % 400);
      disturbed(run, pair, words(arguments), log, random, seen);
    } else {
      undisturbed(run, pair, words(arguments), log, seen);
    }
  }
}

}  // namespace pl::soak
