// SPDX-License-Identifier: Apache-2.0
#include "tools/common/command_process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "base/clock.hpp"
#include "base/own_program.hpp"
#include "base/text.hpp"
#include "tools/common/tool.hpp"

namespace pl::tools {
namespace {

const std::string& own_path() {  // found before a fork
  static const std::string path = own_program();
  return path;
}

void sleep_ms(long milliseconds) {
  const timespec pause{milliseconds / 1000, milliseconds % 1000 * 1'000'000};
  nanosleep(&pause, nullptr);
}

[[noreturn]] void become(const command_process::settings& wanted, std::vector<char*>& arguments, pid_t parent, int output) {
  setpgid(0, 0);
  if (prctl(PR_SET_PDEATHSIG, wanted.end_signal) != 0 || getppid() != parent) _exit(127);
  if (wanted.max_files != 0) {
    const rlimit limit{wanted.max_files, wanted.max_files};
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  if (output >= 0) {
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
  }
  for (const auto& [name, value] : wanted.environment) setenv(name.c_str(), value.c_str(), 1);
  execv(own_path().c_str(), arguments.data());
  _exit(127);
}

}  // namespace

command_process::command_process(const settings& wanted) {
  std::vector<std::string> words = {"peerlane"};
  words.insert(words.end(), wanted.arguments.begin(), wanted.arguments.end());
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  int output = -1;
  if (!wanted.output_path.empty()) {
    output = open(wanted.output_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (output < 0) throw tool_failure(format("%s: %s", wanted.output_path.c_str(), errno_text(errno).c_str()));
  }
  own_path();
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) become(wanted, arguments, parent, output);
  const int fork_errno = errno;
  if (output >= 0) close(output);
  if (pid_ < 0) throw tool_failure("fork: " + errno_text(fork_errno));
  setpgid(pid_, pid_);  // set on both sides, so that the order does not matter
}

command_process::~command_process() {
  kill(-pid_, SIGKILL);
  if (!state_) waitpid(pid_, nullptr, 0);
}

std::vector<pid_t> command_process::children() const {
  std::vector<pid_t> out;
  std::ifstream file(format("/proc/%d/task/%d/children", static_cast<int>(pid_), static_cast<int>(pid_)));
  for (pid_t child = 0; file >> child;) out.push_back(child);
  return out;
}

void command_process::send(int signal) const {
  if (!state_) kill(pid_, signal);
}

std::optional<int> command_process::wait_ms(std::uint64_t milliseconds) {
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

bool command_process::group_ends_within_ms(std::uint64_t milliseconds) const {
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

}  // namespace pl::tools
