// SPDX-License-Identifier: Apache-2.0
// peerlane: one program; the subcommand is the first argument, or the name under which the program was started
// (gdrcopy_copybw and the like are links to it).
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "command_line.hpp"
#include "machine.hpp"
#include "tool.hpp"

namespace pl::tools {
namespace {

struct command {
  const char* name;
  const char* drop_in_name;  // null: ours alone
  int (*run)(const invocation&);
  const char* help;
};

constexpr std::array kCommands = {
    command{"demo", nullptr, run_demo, "everything in short: what is here, does it work, how fast is it"},
    command{"info", nullptr, run_info,
            "GPUs, BAR1, links, driver, near CPUs, mapping backends and why each is usable or not"},
    command{"doctor", nullptr, run_doctor, "what stands between this machine and the fast path, and the fix"},
    command{"sanity", "gdrcopy_sanity", run_sanity, "correctness: every GDRCopy case by its name, and ours"},
    command{"copybw", "gdrcopy_copybw", run_copybw, "bandwidth of CPU copies through a mapping"},
    command{"copylat", "gdrcopy_copylat", run_copylat, "latency of CPU copies, compared with other ways in the same run"},
    command{"apiperf", "gdrcopy_apiperf", run_apiperf, "cost of pin, map, get_info, unmap, unpin"},
    command{"pplat", "gdrcopy_pplat", run_pplat, "round trip between the CPU and a running kernel"},
    command{"copy", nullptr, run_copy, "copies by every method and by the planner, against the best of them at each size"},
    command{"calibrate", nullptr, run_calibrate, "measures what each way to copy costs here, for the planner"},
    command{"explain-copy", nullptr, run_explain_copy, "which way a copy would go, and why (needs no GPU)"},
    command{"topo", nullptr, run_topo, "GPUs, network adapters and NUMA nodes: distances, advice, checks (needs no GPU)"},
    command{"bandwidth", "nvbandwidth", run_bandwidth,
            "every link between host and GPU memory: rates, latencies, what to expect, and what is wrong"},
    command{"p2p", nullptr, run_p2p, "messages between two processes' buffers, measured and printed as OSU's benchmarks do"},
#ifdef PL_HAS_ASYNC
    command{"async", nullptr, run_async,
            "streams that signal each other: benchmarks against the CPU between kernel and message"},
#endif
    command{"report", nullptr, run_report, "result files as one page with charts, or as Markdown (needs python3)"},
    command{"top", nullptr, run_top,
            "what running processes do, live: mappings, copies by way, messages, channels (needs python3)"},
#ifdef PL_HAS_STORE
    command{"store", nullptr, run_store, "a persistent store of values for host and GPU memory: server, client, benchmark"},
#endif
    command{"env", nullptr, run_env, "environment variables: meaning, value, problems"},
};

void print_usage(FILE* out) {
  std::fputs("usage: peerlane COMMAND [options]\n\ncommands:\n", out);
  for (const auto& one : kCommands) std::fprintf(out, "  %-12s  %s\n", one.name, one.help);
  std::fputs("\npeerlane COMMAND -h lists its options. PEERLANE_GPU=auto|real|sim chooses the GPU.\n", out);
}

std::string_view base_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash != nullptr ? slash + 1 : path;
}

const command* by_subcommand(std::string_view name) {
  for (const auto& one : kCommands)
    if (name == one.name || (one.drop_in_name != nullptr && name == one.drop_in_name)) return &one;
  return nullptr;
}

// Old packages call the tools copybw, copylat, apiperf, sanity, pplat; newer ones put gdrcopy_ before.
const command* by_program_name(std::string_view name) {
  for (const auto& one : kCommands)
    if (one.drop_in_name != nullptr && (name == one.drop_in_name || name == one.name)) return &one;
  return p2p::benchmark_of_program(std::string(name)) ? by_subcommand("p2p") : nullptr;
}

int run(const command& chosen, const invocation& call) {
  try {
    return chosen.run(call);
  } catch (const tool_failure& failure) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s: %s\n", call.program.c_str(), failure.what());
    return failure.exit_code;
  }
}

int dispatch(int argc, char** argv) {
  invocation call;
  for (int i = 0; i < argc; ++i) call.command_line.emplace_back(argv[i]);
  const std::string_view name = argc > 0 ? base_name(argv[0]) : "peerlane";
  if (const command* stock = by_program_name(name)) {
    call.program = std::string(name);
    call.drop_in = true;
    call.arguments.assign(call.command_line.begin() + 1, call.command_line.end());
    return run(*stock, call);
  }
  if (argc < 2) {
    print_usage(stderr);
    return kExitFailed;
  }
  const std::string_view word = argv[1];
  if (word == "-h" || word == "--help" || word == "help") {
    print_usage(stdout);
    return kExitOk;
  }
  if (word == "--version") {
    const auto host = describe_host();
    std::printf("peerlane %s (%s)\n", host.peerlane_version.c_str(), host.git_revision.c_str());
    return kExitOk;
  }
  const command* chosen = by_subcommand(word);
  if (chosen == nullptr) {
    std::fprintf(stderr, "peerlane: there is no command \"%s\"\n\n", argv[1]);
    print_usage(stderr);
    return kExitFailed;
  }
  call.program = std::string("peerlane ") + chosen->name;
  call.arguments.assign(call.command_line.begin() + 2, call.command_line.end());
  return run(*chosen, call);
}

}  // namespace
}  // namespace pl::tools

int main(int argc, char** argv) {
  // Benchmarks print for minutes: a reader of a pipe wants each line when it is known.
  std::setvbuf(stdout, nullptr, _IOLBF, 1 << 16);
  const int code = pl::tools::dispatch(argc, argv);
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) {
    std::fputs("peerlane: standard output cannot be written\n", stderr);
    return pl::tools::kExitFailed;
  }
  return code;
}
