// SPDX-License-Identifier: Apache-2.0
// Commands that are Python modules: `peerlane report`, `peerlane top`. The modules lie in python/ beside the program (build
// folder and installation alike); elsewhere Python looks for an installed package.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/own_program.hpp"
#include "base/text.hpp"
#include "tools/common/command_facts.hpp"
#include "tools/common/tool.hpp"

namespace pl::tools {
namespace {

// Not by PYTHONPATH, which programs that Python starts would inherit. argparse ends with 2 for a wrong command line; every
// command of ours with 1.
constexpr const char* kStart =
    "import runpy, sys\n"
    "folder = sys.argv.pop(1)\n"
    "sys.path[:0] = [folder] if folder else []\n"
    "module = sys.argv.pop(1)\n"
    "try:\n"
    "    runpy.run_module(module, run_name='__main__', alter_sys=True)\n"
    "except SystemExit as end:\n"
    "    sys.exit(1 if end.code == 2 else end.code)\n";

// What their parsers take, as `peerlane report -h` prints it; a test compares.
const option_facts kReportOptions[] = {
    {{"-h", "--help"}, "", "Print this help and exit", {}},
    {{"--version"}, "", "Print the version and exit", {}},
    {{"-o", "--output"},
     "FILE",
     "where to write; - is standard output (default: report.html; Markdown: standard output)",
     {}},
    {{"--markdown"}, "", "a summary in Markdown instead of the page", {}},
    {{"--title"}, "TITLE", "heading of the page", {}},
    {{"--setup"}, "", "fetch plotly.js from PyPI into a private environment, once", {}},
};
const option_facts kTopOptions[] = {
    {{"-h", "--help"}, "", "Print this help and exit", {}},
    {{"--version"}, "", "Print the version and exit", {}},
    {{"--interval"}, "SECONDS", "between two looks (default 1)", {}},
    {{"--once"}, "", "two looks, one interval apart, as plain text", {}},
    {{"--json"}, "[FILE]", "the same as JSON; without FILE, or for -, to standard output", {}},
    {{"--looks"}, "N", "end the live view after so many pictures", {}},
    {{"--folder"}, "DIR", "where the numbers lie (default /dev/shm)", {}},
};

int print_facts(const invocation& call, std::span<const option_facts> options) {
  call.facts->options.assign(options.begin(), options.end());
  return kExitOk;
}

std::string folder_of_modules(const char* module) {
  std::error_code ignored;
  const auto folder = std::filesystem::path(own_program_file()).parent_path() / "python";
  std::string relative = module;
  for (char& c : relative)
    if (c == '.') c = '/';
  const bool is_beside =
      std::filesystem::exists(folder / relative, ignored) || std::filesystem::exists(folder / (relative + ".py"), ignored);
  return is_beside ? folder.string() : "";
}

// Python takes a closed descriptor for closed, but not what stands in for one here (standard_descriptors.hpp).
void close_placeholders() noexcept {
  for (const int place : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    const int flags = fcntl(place, F_GETFL);
    if (flags >= 0 && (flags & O_PATH) != 0) close(place);
  }
}

// Replaces this process; returns only by throwing.
[[noreturn]] void become_python(const char* module, const invocation& call) {
  // Below this the interpreter itself ends by SIGSEGV.
  constexpr rlim_t kStackBytes = 128u << 10;
  rlimit stack{};
  if (getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur < kStackBytes)
    throw tool_failure(
        format("a stack may have %llu KiB and python3, in which this command is written, needs 128 KiB: raise "
               "the limit (ulimit -s)",
               static_cast<unsigned long long>(stack.rlim_cur >> 10)));
  std::vector<std::string> words = {"python3", "-B", "-c", kStart, folder_of_modules(module), module};
  words.insert(words.end(), call.arguments.begin(), call.arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  close_placeholders();
  execvp("python3", argv.data());
  throw tool_failure(format("python3 cannot be started (%s); this command is written in Python 3.10", std::strerror(errno)));
}

}  // namespace

int run_report(const invocation& call) {
  if (call.facts != nullptr) return print_facts(call, kReportOptions);
  become_python("peerlane.report", call);
}

int run_top(const invocation& call) {
  if (call.facts != nullptr) return print_facts(call, kTopOptions);
  become_python("peerlane.top", call);
}

}  // namespace pl::tools
