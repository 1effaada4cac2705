// SPDX-License-Identifier: Apache-2.0
#include "tools/demo/demo_job.hpp"

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "tools/common/tool.hpp"

namespace pl::tools {
namespace {

constexpr std::uint64_t kPollNs = 10'000'000;

// A file of this process alone, deleted at the end.
class temporary_file {
 public:
  temporary_file() {
    path_ = (std::filesystem::temp_directory_path() / "peerlane-demo-XXXXXX").string();
    const int file = mkstemp(path_.data());
    if (file < 0) throw tool_failure(format("%s: %s", path_.c_str(), errno_text(errno).c_str()));
    close(file);
  }
  ~temporary_file() { unlink(path_.c_str()); }
  temporary_file(const temporary_file&) = delete;
  temporary_file& operator=(const temporary_file&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The child is a process group of its own, so that the time limit reaches the processes that it starts as well.
[[noreturn]] void become(const demo_job& job, std::vector<char*>& arguments, pid_t parent) {
  setpgid(0, 0);
  if (prctl(PR_SET_PDEATHSIG, SIGTERM) != 0 || getppid() != parent) _exit(127);
  for (const auto& [name, value] : job.environment) setenv(name.c_str(), value.c_str(), 1);
  execv("/proc/self/exe", arguments.data());
  _exit(127);
}

int wait_for(pid_t child, int timeout_s) {
  const std::uint64_t end_ns = monotonic_ns() + static_cast<std::uint64_t>(timeout_s) * 1'000'000'000u;
  int state = 0;
  while (waitpid(child, &state, WNOHANG) == 0) {
    if (monotonic_ns() >= end_ns) {
      kill(-child, SIGKILL);
      waitpid(child, &state, 0);
      throw tool_failure(format("took longer than %d s", timeout_s));
    }
    const timespec pause{0, static_cast<long>(kPollNs)};
    nanosleep(&pause, nullptr);
  }
  return state;
}

}  // namespace

std::string command_text(const demo_job& job) {
  std::string out;
  for (const auto& [name, value] : job.environment) out += name + "='" + value + "' ";
  out += "peerlane";
  for (const auto& word : job.arguments) out += " " + word;
  return out;
}

nlohmann::json run_demo_job(const demo_job& job) {
  const temporary_file results;
  std::vector<std::string> words = {"peerlane"};
  words.insert(words.end(), job.arguments.begin(), job.arguments.end());
  words.insert(words.end(), {"--json", results.path()});
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::fflush(stdout);
  std::fflush(stderr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) throw tool_failure("fork: " + errno_text(errno));
  if (child == 0) become(job, arguments, parent);
  const int state = wait_for(child, job.timeout_s);
  if (WIFSIGNALED(state)) throw tool_failure(format("ended by signal %d", WTERMSIG(state)));
  const int code = WEXITSTATUS(state);
  const bool has_findings = std::find(job.findings.begin(), job.findings.end(), code) != job.findings.end();
  if (code != kExitOk && !has_findings)
    throw tool_failure(format("failed with exit code %d; its reason stands above", code));
  std::ifstream file(results.path());
  const auto json = nlohmann::json::parse(file, nullptr, false);
  if (!json.is_object() || (!has_findings && !json.value("passed", false)))
    throw tool_failure("its result file does not say that it passed");
  return json;
}

}  // namespace pl::tools
