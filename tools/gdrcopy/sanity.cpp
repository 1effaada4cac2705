// SPDX-License-Identifier: Apache-2.0
// sanity: correctness cases by name. GDRCopy's options and summary lines; ours come after theirs.
//
// The parent never starts CUDA. It executes itself once per case (hidden option --run-case), so every case begins in a new
// process, and one that crashes or hangs harms no other.
#include "tools/gdrcopy/sanity.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/log.hpp"
#include "base/own_program.hpp"
#include "measure/progress.hpp"
#include "tools/common/gpu.hpp"
#include "tools/common/gpu_choice.hpp"
#include "tools/common/report.hpp"
#include "tools/common/terminal.hpp"

namespace pl::tools {
namespace {

constexpr int kExitWaived = 2;
constexpr std::uint64_t kGpuCheckNs = 60'000'000'000;

struct sanity_options {
  common_options common;
  bool verbose = false, no_summary = false, list = false, extended = false, stock_only = false, all = false;
  std::vector<std::string> names;
  std::int64_t timeout_s = kDefaultCaseTimeoutS;
  std::string run_case;         // hidden: this process is the case
  std::int64_t report_fd = -1;  // hidden: where it writes its reason
};

std::optional<int> parse(const invocation& call, sanity_options& options) {
  command_parser parser(call, "Tests mappings and copies, each case in its own process. Exit code 1 if one fails");
  parser.flag("-v,--verbose", options.verbose, "Print the running case to stderr");
  parser.flag("-s,--no-summary", options.no_summary, "Do not print a summary");
  parser.flag("-l,--list", options.list, "List the cases; with -v also what each asserts");
  parser.repeated("-t,--test", "NAME", options.names, "Run this case only; may be repeated");
  parser.flag("-e,--extended", options.extended, "Also run the extended cases (they need gdrdrv with dbg_enabled=1)");
  options.stock_only = call.drop_in;
  parser.flag("--stock", options.stock_only, "Run GDRCopy's cases only (the default under the name of its tool)");
  parser.flag("--all", options.all, "Under the name of GDRCopy's tool: also run Peerlane's own cases");
  parser.integer("--timeout-s", "SECONDS", options.timeout_s, 1, 86400, "Timeout of a case in seconds");
  parser.text("--run-case", "NAME", options.run_case, "");
  parser.hide("--run-case");
  parser.integer("--report-fd", options.report_fd, -1, 1'000'000, "");
  parser.hide("--report-fd");
  parser.common(options.common);
  return parser.parse();
}

const sanity_case* find_case(const std::vector<sanity_case>& all, const std::string& name) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const sanity_case& one) { return name == one.name; });
  return found == all.end() ? nullptr : &*found;
}

// ---- the child: one case -------------------------------------------------------------------------------------------------

int be_the_case(const sanity_options& options) {
  const auto all = all_sanity_cases();
  const sanity_case* chosen = find_case(all, options.run_case);
  if (chosen == nullptr) throw tool_failure("unknown case " + options.run_case);
  if (options.verbose) set_log_level(log_level::debug);
  const auto end_with = [&](int code, const std::string& reason) {
    if (options.report_fd >= 0) {
      [[maybe_unused]] const auto wrote = write(static_cast<int>(options.report_fd), reason.data(), reason.size());
    }
    return code;
  };
  if (options.report_fd >= 0) fcntl(static_cast<int>(options.report_fd), F_SETFD, FD_CLOEXEC);
  try {
    chosen->run({options.common.gpu, options.verbose});
  } catch (const case_waived& cause) { return end_with(kExitWaived, cause.what()); } catch (const std::exception& cause) {
    return end_with(kExitFailed, cause.what());
  }
  return kExitOk;
}

// ---- the parent ----------------------------------------------------------------------------------------------------------

// Lets this process see the chosen GPU alone, as number 0. Its number stays where that is not possible: the case then says
// what is wrong with it.
void narrow_to_one_gpu(int& gpu) {
  const env_value list = env_read("CUDA_VISIBLE_DEVICES");
  const std::string only = visible_entry(list.is_set ? list.text.c_str() : nullptr, gpu);
  if (only.empty() || setenv("CUDA_VISIBLE_DEVICES", only.c_str(), 1) != 0) return;
  gpu = 0;
}

[[noreturn]] void execute_case(const sanity_case& one, case_context context, int report_fd) {
  if (!one.sees_every_gpu) narrow_to_one_gpu(context.gpu);
  setpgid(0, 0);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  dup2(null, STDIN_FILENO);
  dup2(context.verbose ? STDERR_FILENO : null, STDOUT_FILENO);
  const std::string fd_text = std::to_string(report_fd), gpu_text = std::to_string(context.gpu);
  std::vector<const char*> arguments = {"peerlane", "sanity",         "--run-case",  one.name,
                                        "-d",       gpu_text.c_str(), "--report-fd", fd_text.c_str()};
  if (context.verbose) arguments.push_back("-v");
  arguments.push_back(nullptr);
  execv(own_program().c_str(), const_cast<char* const*>(arguments.data()));
  _exit(127);
}

// Reads the case's output until it closes the pipe or time is up. True if time was up.
bool collect_until(int fd, std::uint64_t deadline_ns, std::string& text) {
  while (true) {
    const std::uint64_t now_ns = monotonic_ns();
    if (now_ns >= deadline_ns) return true;
    pollfd waiting{fd, POLLIN, 0};
    const int ready = poll(&waiting, 1, static_cast<int>((deadline_ns - now_ns) / 1'000'000 + 1));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) return true;
    char part[1024];
    const ssize_t got = read(fd, part, sizeof part);
    if (got <= 0) return false;
    text.append(part, static_cast<std::size_t>(got));
  }
}

}  // namespace

std::string visible_entry(const char* list, int ordinal) {
  if (ordinal < 0) return "";
  if (list == nullptr) return std::to_string(ordinal);
  std::string_view rest = list;
  for (int i = 0; i < ordinal; ++i) {
    const auto comma = rest.find(',');
    if (comma == std::string_view::npos) return "";
    rest.remove_prefix(comma + 1);
  }
  return std::string(rest.substr(0, rest.find(',')));
}

case_report run_case(const sanity_case& one, const case_context& context, int timeout_s) {
  case_report out{one.name, case_outcome::failed, "", 0};
  int ends[2];
  if (pipe(ends) != 0) {
    out.reason = "pipe failed";
    return out;
  }
  fcntl(ends[0], F_SETFD, FD_CLOEXEC);
  std::fflush(nullptr);
  const std::uint64_t begin_ns = monotonic_ns();
  const pid_t child = fork();
  if (child == 0) execute_case(one, context, ends[1]);
  close(ends[1]);
  if (child > 0) setpgid(child, child);  // both sides do: neither may be late
  const bool timed_out =
      child > 0 && collect_until(ends[0], begin_ns + static_cast<std::uint64_t>(timeout_s) * 1'000'000'000, out.reason);
  close(ends[0]);
  if (child < 0) {
    out.reason = "fork failed";
    return out;
  }
  if (timed_out) kill(-child, SIGKILL);
  int state = 0;
  waitpid(child, &state, 0);
  kill(-child, SIGKILL);  // ends processes that the case left
  out.seconds = static_cast<double>(monotonic_ns() - begin_ns) / 1e9;
  if (timed_out) out.reason = format("no end after %d s", timeout_s);
  else if (WIFSIGNALED(state)) out.reason = format("died of signal %d (%s)", WTERMSIG(state), strsignal(WTERMSIG(state)));
  else if (WEXITSTATUS(state) == kExitOk) out.outcome = case_outcome::passed;
  else if (WEXITSTATUS(state) == kExitWaived) out.outcome = case_outcome::waived;
  else if (out.reason.empty()) out.reason = format("exit code %d", WEXITSTATUS(state));
  return out;
}

namespace {

std::vector<sanity_case> chosen_cases(const sanity_options& options) {
  const auto all = all_sanity_cases();
  std::vector<sanity_case> out;
  if (!options.names.empty()) {
    for (const auto& name : options.names) {
      const sanity_case* one = find_case(all, name);
      if (one == nullptr) throw tool_failure(format("unknown case \"%s\"; -l lists them", name.c_str()));
      out.push_back(*one);
    }
    return out;
  }
  for (const auto& one : all)
    if ((one.stock || !options.stock_only || options.all) && (!one.extended || options.extended)) out.push_back(one);
  return out;
}

// A case sees only one GPU, so CUDA reports only that there is none. This asks in a separate process, because this one
// never starts CUDA. The default GPU is left to the cases, which say why there is none.
void check_gpu(int ordinal) {
  int ends[2];
  if (ordinal <= 0 || pipe(ends) != 0) return;
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const int each : {STDOUT_FILENO, STDERR_FILENO}) dup2(null, each);
    try {
      const gpu_session gpu(ordinal, false);
    } catch (const std::exception& cause) {
      const std::string_view text = cause.what();
      [[maybe_unused]] const auto wrote = write(ends[1], text.data(), text.size());
    }
    _exit(kExitOk);
  }
  close(ends[1]);
  std::string reason;
  const bool timed_out = child > 0 && collect_until(ends[0], monotonic_ns() + kGpuCheckNs, reason);
  close(ends[0]);
  if (child > 0) kill(child, SIGKILL), waitpid(child, nullptr, 0);
  if (!timed_out && !reason.empty()) throw tool_failure(reason);
}

void print_names(const char* title, const std::vector<case_report>& reports, case_outcome outcome, bool with_reason) {
  bool first = true;
  for (const auto& one : reports) {
    if (one.outcome != outcome) continue;
    if (first) std::printf("%s\n", title);
    first = false;
    if (with_reason) std::printf("    %s: %s\n", one.name.c_str(), one.reason.c_str());
    else std::printf("    %s\n", one.name.c_str());
  }
}

const char* word(case_outcome outcome) {
  return outcome == case_outcome::passed ? "PASSED" : outcome == case_outcome::waived ? "WAIVED" : "FAILED";
}

}  // namespace

int run_sanity(const invocation& call) {
  sanity_options options;
  if (const auto code = parse(call, options)) return *code;
  if (!options.run_case.empty()) return be_the_case(options);
  const auto cases = chosen_cases(options);
  if (options.list) {
    for (const auto& one : cases) {
      if (options.verbose) std::printf("%-55s %s\n", one.name, one.asserts);
      else std::printf("%s\n", one.name);
    }
    return kExitOk;
  }
  report out(call, options.common, "sanity");
  const bool simulated = must(choose_gpu()) == gpu_kind::simulated;
  print_header_if_simulated();
  check_gpu(options.common.gpu);
  machine_facts machine = describe_host();
  machine.simulated = simulated;
  out.file().set_machine(machine);
  std::vector<case_report> reports;
  {
    progress line("sanity", cases.size());
    for (const auto& one : cases) {
      line.start_step(reports.size(), one.name);
      if (options.verbose) std::fprintf(stderr, "&&&& RUNNING %s\n", one.name);
      reports.push_back(run_case(one, {options.common.gpu, options.verbose}, static_cast<int>(options.timeout_s)));
      const auto& done = reports.back();
      if (options.verbose)
        std::fprintf(stderr, "&&&& %s %s%s%s\n", word(done.outcome), one.name, done.reason.empty() ? "" : ": ",
                     done.reason.c_str());
      out.file().add_row({{"case", one.name},
                          {"outcome", word(done.outcome)},
                          {"reason", done.reason},
                          {"seconds", done.seconds},
                          {"stock", one.stock},
                          {"asserts", one.asserts}});
    }
  }
  const auto count = [&](case_outcome outcome) {
    return std::count_if(reports.begin(), reports.end(), [outcome](const auto& one) { return one.outcome == outcome; });
  };
  if (!options.no_summary) {
    const auto failed = count(case_outcome::failed);
    const auto part = [&](const char* name, std::ptrdiff_t n, colour shade) {
      return paint(n == 0 || call.drop_in ? colour::none : shade, format("%s: %td", name, n));
    };
    std::printf(
        "Total: %zu, %s, %s, %s\n", reports.size(), part("Passed", count(case_outcome::passed), colour::good).c_str(),
        part("Failed", failed, colour::bad).c_str(), part("Waived", count(case_outcome::waived), colour::warning).c_str());
    print_names("\nList of failed tests:", reports, case_outcome::failed, !call.drop_in);
    print_names("\nList of waived tests:", reports, case_outcome::waived, !call.drop_in);
  }
  const bool good = count(case_outcome::failed) == 0;
  out.file().set_pass(good);
  out.write();
  return good ? kExitOk : kExitFailed;
}

}  // namespace pl::tools
