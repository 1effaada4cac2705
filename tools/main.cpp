// SPDX-License-Identifier: Apache-2.0
// peerlane: one program; the subcommand is the first argument, or the name under which the program was started
// (gdrcopy_copybw and the like are links to it).
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string_view>
#include <system_error>

#include "base/env.hpp"
#include "measure/machine.hpp"
#include "tools/common/command_facts.hpp"
#include "tools/common/stack_limit.hpp"
#include "tools/common/standard_descriptors.hpp"
#include "tools/common/subcommand.hpp"
#include "tools/common/terminal.hpp"
#include "tools/common/tool.hpp"
#include "tools/p2p/command_line.hpp"

namespace pl::tools {
namespace {

struct command {
  const char* name;
  const char* drop_in_name;  // null: ours alone
  int (*run)(const invocation&);
  const char* help;
};

constexpr std::array kCommands = {
    command{"demo", nullptr, run_demo, "shows in a minute what this machine has, whether it works, and how fast it is"},
    command{"info", nullptr, run_info,
            "shows GPUs, BAR1, links, driver, near CPUs, and whether each mapping backend is usable"},
    command{"doctor", nullptr, run_doctor,
            "finds what prevents fast access to GPU memory on this machine, and names the fix"},
    command{"sanity", "gdrcopy_sanity", run_sanity,
            "tests correctness: GDRCopy's cases under their names, and Peerlane's own"},
    command{"copybw", "gdrcopy_copybw", run_copybw, "measures the bandwidth of CPU copies through a mapping"},
    command{"copylat", "gdrcopy_copylat", run_copylat,
            "compares the latency of CPU copies with that of other methods, in one run"},
    command{"apiperf", "gdrcopy_apiperf", run_apiperf, "measures the cost of pin, map, get_info, unmap, unpin"},
    command{"pplat", "gdrcopy_pplat", run_pplat, "measures the round trip between the CPU and a running kernel"},
    command{"copy", nullptr, run_copy, "measures copies by every method and by the planner at each size"},
    command{"blocks", nullptr, run_blocks,
            "compares copies of many scattered blocks in one call with the driver's calls and copy kernels"},
    command{"calibrate", nullptr, run_calibrate, "measures the cost of each copy method on this machine, for the planner"},
    command{"explain-copy", nullptr, run_explain_copy,
            "shows which method the planner chooses for a copy, and why (needs no GPU)"},
    command{"topo", nullptr, run_topo,
            "shows how GPUs, network adapters and NUMA nodes are connected, with advice (needs no GPU)"},
    command{"bandwidth", "nvbandwidth", run_bandwidth,
            "measures every link between host and GPU memory, and compares it with the expected rate"},
    command{"gate", nullptr, run_gate,
            "decides if this machine is fit for a job: one line and an exit code for Slurm, Kubernetes and Prometheus"},
    command{"p2p", nullptr, run_p2p,
            "measures messages between processes, with the options and output of the OSU benchmarks"},
#ifdef PL_HAS_ASYNC
    command{"async", nullptr, run_async, "compares exchanges that CUDA streams trigger with exchanges by the CPU"},
#endif
    command{"report", nullptr, run_report, "shows result files as a page with charts, or as Markdown (needs python3)"},
    command{"top", nullptr, run_top,
            "shows live activity of processes: mappings, copies by method, messages, channels (needs python3)"},
#ifdef PL_HAS_STORE
    command{"store", nullptr, run_store, "persistent key-value store for host and GPU memory: server, client, benchmarks"},
    command{"soak", nullptr, run_soak,
            "tests store, messages and mappings under random kills, floods and full disks, against an oracle"},
#endif
    command{"env", nullptr, run_env, "shows the environment variables: value, default, meaning, problems"},
};

constexpr const char* kHelp = "measures and explains CPU access to GPU memory";

void print_usage(FILE* out) {
  std::fputs("usage: peerlane COMMAND [options]\n\ncommands:\n", out);
  for (const auto& one : kCommands) std::fprintf(out, "  %-12s  %s\n", one.name, one.help);
  std::fputs(
      "\npeerlane COMMAND -h lists its options, man peerlane all of them. PEERLANE_GPU=auto|real|sim chooses the GPU.\n",
      out);
  std::fputs("\nexit status:\n", out);
  for (const auto& one : exit_statuses()) std::fprintf(out, "  %s  %s\n", one.code, one.meaning);
}

void print_version() {
  const auto host = describe_host();
  std::printf("peerlane %s (%s)\n", host.peerlane_version.c_str(), host.git_revision.c_str());
}

command_facts facts_of_program() {
  command_facts out{
      "peerlane",
      kHelp,
      "",
      "Without a command it lists its commands; peerlane COMMAND -h lists the options of one. Good "
      "first commands: peerlane doctor (what prevents the fast path on this machine), peerlane demo, peerlane "
      "sanity.\nUnder another name it is that tool, with the options and the text of its namesake: gdrcopy_sanity, "
      "gdrcopy_copybw, gdrcopy_copylat, gdrcopy_apiperf, gdrcopy_pplat (and the same without gdrcopy_), nvbandwidth, "
      "osu_latency, osu_bw, osu_bibw, osu_mbw_mr and osu_multi_lat; osu_put_latency, osu_put_bw, osu_get_latency, "
      "osu_get_bw, osu_fop_latency and osu_cas_latency; osu_barrier, osu_bcast, osu_gather, osu_scatter, "
      "osu_allgather, osu_reduce, osu_allreduce, osu_reduce_scatter, osu_alltoall and osu_alltoallv.",
      {},
      {}};
  for (const auto& one : kCommands) {
    command_facts& facts = out.commands.emplace_back();
    facts.name = one.name;
    facts.help = one.help;
    facts.drop_in = one.drop_in_name != nullptr ? one.drop_in_name : "";
    invocation asked;
    asked.program = std::string("peerlane ") + one.name;
    asked.facts = &facts;
    one.run(asked);
  }
  command_facts help{"help", "the commands, or the options of one", "", "", {}, {}};
  for (const auto& one : out.commands) help.commands.push_back({one.name, one.help, "", "", {}, {}});
  out.commands.push_back(std::move(help));
  out.options = {{{"-h", "--help"}, "", "Print this help and exit", {}},
                 {{"--version"}, "", "Print the version and exit", {}}};
  return out;
}

// For the shells' completions (packaging/completions) and the build, which writes the manual. No commands for people.
int run_hidden(std::string_view word, const std::vector<std::string>& arguments) {
  const auto facts = facts_of_program();
  if (word == "__manual") {
    std::fputs(manual_page(facts, describe_host().peerlane_version).c_str(), stdout);
    return kExitOk;
  }
  for (const auto& line : complete(facts, arguments)) std::printf("%s\n", line.c_str());
  return kExitOk;
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

bool asks_for_version(const invocation& call) {
  for (const auto& one : call.arguments)
    if (one == "--version") return true;
  return false;
}

int run(const command& chosen, const invocation& call) {
  // OSU's programs and nvbandwidth have a --version of their own.
  const bool is_own = call.drop_in && (p2p::benchmark_of_program(call.program) || call.program == "nvbandwidth");
  if (asks_for_version(call) && !is_own) return print_version(), kExitOk;
  try {
    return chosen.run(call);
  } catch (const tool_failure& failure) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s: %s\n", call.program.c_str(), without_controls(failure.what()).c_str());
    return failure.exit_code;
  } catch (const std::system_error& failure) {
    std::fflush(stdout);
    const bool no_thread = failure.code() == std::errc::resource_unavailable_try_again;
    std::fprintf(stderr, "%s: %s%s\n", call.program.c_str(), without_controls(failure.what()).c_str(),
                 no_thread ? ": no thread could be started (ulimit -u, or a container's limit of processes?)" : "");
    return kExitFailed;
  } catch (const std::bad_alloc&) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s: there is not enough memory (ulimit -d, ulimit -v, or a container's limit?)\n",
                 call.program.c_str());
    return kExitFailed;
  } catch (
      const std::exception& failure) {  // a folder that vanished, no memory: the reader gets the reason, not a core dump
    std::fflush(stdout);
    std::fprintf(stderr, "%s: %s\n", call.program.c_str(), without_controls(failure.what()).c_str());
    return kExitFailed;
  }
}

// Programs that this one starts do not say it again, nor do the libraries that it links.
void check_variables() {
  if (env_read("PEERLANE_NAMES_CHECKED").integer == 0)
    for (const auto& one : env_unknown_names())
      if (!one.nearest.empty()) std::fprintf(stderr, "peerlane: %s\n", env_unknown_text(one).c_str());
  setenv("PEERLANE_NAMES_CHECKED", "1", 1);
}

// Kernels that wait for the CPU (of sanity, bandwidth, async ...) would wait for good if the launch waited for them.
void allow_launches() {
  if (env_read("CUDA_LAUNCH_BLOCKING").integer == 0) return;
  std::fputs("peerlane: CUDA_LAUNCH_BLOCKING is ignored here: the kernels of these tests wait for the CPU\n", stderr);
  unsetenv("CUDA_LAUNCH_BLOCKING");
}

// The first process of a container gets no signal that it has no handler for: ^C and `docker stop` would do nothing.
[[noreturn]] void end_by_signal(int number) { _exit(128 + number); }

// Ignored or blocked signals stay so in the programs that a process starts. With SIGCHLD ignored nobody could wait for
// helpers, and with SIGTERM blocked nobody could end them.
void set_up_signals() {
  std::signal(SIGCHLD, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (getpid() == 1)
    for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT})
      if (std::signal(number, end_by_signal) == SIG_IGN) std::signal(number, SIG_IGN);
  // A file that may not grow (ulimit -f) is an error with a reason (EFBIG), and ends neither this program nor a store.
  std::signal(SIGXFSZ, SIG_IGN);
}

int refuse_command(const std::string& word) {
  std::vector<std::string> names = {"help"};
  for (const auto& one : kCommands) names.emplace_back(one.name);
  std::fprintf(stderr, "peerlane: unknown command \"%s\"%s; peerlane -h lists them\n", without_controls(word).c_str(),
               did_you_mean(word, names).c_str());
  return kExitFailed;
}

int run_named(invocation call, std::vector<std::string> words) {
  const command* chosen = by_subcommand(words[0]);
  if (chosen == nullptr) return refuse_command(words[0]);
  call.program = std::string("peerlane ") + chosen->name;
  call.arguments.assign(words.begin() + 1, words.end());
  return run(*chosen, call);
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
  std::vector<std::string> words(call.command_line.begin() + 1, call.command_line.end());
  const std::string word = words[0];
  if (word == "__complete" || word == "__manual") return run_hidden(word, {words.begin() + 1, words.end()});
  if (word == "help" && words.size() > 1) {  // peerlane help COMMAND [SUBCOMMAND]
    words.erase(words.begin());
    if (words[0] == "-h" || words[0] == "--help" || words[0] == "help") return print_usage(stdout), kExitOk;
    words.emplace_back("-h");
    return run_named(call, words);
  }
  if (word == "-h" || word == "--help" || word == "help") return print_usage(stdout), kExitOk;
  if (word == "--version") return print_version(), kExitOk;
  return run_named(call, words);
}

}  // namespace
}  // namespace pl::tools

int main(int argc, char** argv) {
  if (!pl::tools::fill_standard_descriptors()) return pl::tools::kExitFailed;  // nobody could read the reason
  pl::tools::raise_stack_limit();
  pl::tools::set_up_signals();
  // Benchmarks print for minutes: a reader of a pipe wants each line when it is known.
  std::setvbuf(stdout, nullptr, _IOLBF, 1 << 16);
  pl::tools::check_variables();
  pl::tools::allow_launches();
  const int code = pl::tools::dispatch(argc, argv);
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) {
    std::fputs("peerlane: standard output cannot be written\n", stderr);
    return pl::tools::kExitFailed;
  }
  return code;
}
