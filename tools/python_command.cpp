// SPDX-License-Identifier: Apache-2.0
// Commands that are Python modules: `peerlane report`, `peerlane top`. The modules lie in python/ beside the program (build
// folder and installation alike); elsewhere Python looks for an installed package.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "text.hpp"
#include "tool.hpp"

namespace pl::tools {
namespace {

// Not by PYTHONPATH, which programs that Python starts would inherit.
constexpr const char* kStart =
    "import runpy, sys; folder = sys.argv.pop(1); sys.path[:0] = [folder] if folder else []; "
    "module = sys.argv.pop(1); runpy.run_module(module, run_name='__main__', alter_sys=True)";

std::string folder_of_modules(const char* module) {
  std::error_code ignored;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path() / "python";
  std::string relative = module;
  for (char& c : relative)
    if (c == '.') c = '/';
  const bool here =
      std::filesystem::exists(folder / relative, ignored) || std::filesystem::exists(folder / (relative + ".py"), ignored);
  return here ? folder.string() : "";
}

// Replaces this process; returns only by throwing.
[[noreturn]] void become_python(const char* module, const invocation& call) {
  std::vector<std::string> words = {"python3", "-B", "-c", kStart, folder_of_modules(module), module};
  words.insert(words.end(), call.arguments.begin(), call.arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execvp("python3", argv.data());
  throw tool_failure(format("python3 cannot be started (%s); this command is written in Python 3.10", std::strerror(errno)));
}

}  // namespace

int run_report(const invocation& call) { become_python("peerlane.report", call); }
int run_top(const invocation& call) { become_python("peerlane.top", call); }

}  // namespace pl::tools
