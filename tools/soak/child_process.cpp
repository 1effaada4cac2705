// SPDX-License-Identifier: Apache-2.0
#include "tools/soak/child_process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "tools/common/tool.hpp"

namespace pl::soak {
namespace {

void sleep_ms(long milliseconds) {
  const timespec pause{milliseconds / 1000, milliseconds % 1000 * 1'000'000};
  nanosleep(&pause, nullptr);
}

[[noreturn]] void become(const child_process::settings& wanted, std::vector<char*>& arguments, pid_t parent, int output) {
  setpgid(0, 0);
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(127);
  if (wanted.max_files != 0) {
    const rlimit limit{wanted.max_files, wanted.max_files};
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  execv("/proc/self/exe", arguments.data());
  _exit(127);
}

}  // namespace

child_process::child_process(const settings& wanted) {
  std::vector<std::string> words = {"peerlane"};
  words.insert(words.end(), wanted.arguments.begin(), wanted.arguments.end());
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const char* path = wanted.output_path.empty() ? "/dev/null" : wanted.output_path.c_str();
  const int output = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (output < 0) throw tools::tool_failure(format("%s: %s", path, errno_text(errno).c_str()));
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) become(wanted, arguments, parent, output);
  close(output);
  if (pid_ < 0) throw tools::tool_failure("fork: " + errno_text(errno));
  setpgid(pid_, pid_);  // both sides, so that it holds for whoever comes first
}

child_process::~child_process() {
  kill(-pid_, SIGKILL);
  if (!state_) waitpid(pid_, nullptr, 0);
}

std::vector<pid_t> child_process::children() const {
  std::vector<pid_t> out;
  std::ifstream file(format("/proc/%d/task/%d/children", static_cast<int>(pid_), static_cast<int>(pid_)));
  for (pid_t child = 0; file >> child;) out.push_back(child);
  return out;
}

void child_process::send(int signal) const {
  if (!state_) kill(pid_, signal);
}

std::optional<int> child_process::wait_ms(std::uint64_t milliseconds) {
  const std::uint64_t end_ns = monotonic_ns() + milliseconds * 1'000'000;
  while (!state_) {
    int state = 0;
    const pid_t ended = waitpid(pid_, &state, WNOHANG);
    if (ended == pid_) state_ = state;
    if (state_ || monotonic_ns() >= end_ns) break;
    sleep_ms(5);
  }
  return state_;
}

bool child_process::group_ends_within_ms(std::uint64_t milliseconds) const {
  const std::uint64_t end_ns = monotonic_ns() + milliseconds * 1'000'000;
  while (kill(-pid_, 0) == 0) {
    if (monotonic_ns() >= end_ns) return false;
    sleep_ms(5);
  }
  return errno == ESRCH;
}

std::string state_text(int state) {
  return WIFSIGNALED(state) ? format("signal %d", WTERMSIG(state)) : format("exit code %d", WEXITSTATUS(state));
}

}  // namespace pl::soak
