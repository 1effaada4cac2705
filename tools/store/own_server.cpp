// SPDX-License-Identifier: Apache-2.0
#include "tools/store/own_server.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "base/own_program.hpp"
#include "base/text.hpp"
#include "store/protocol/byte_channel.hpp"
#include "tools/common/tool.hpp"

namespace pl::store_tools {
namespace {

constexpr int kNotStarted = 127;

// The server's first line names its address.
std::string first_line(int pipe) {
  std::string out;
  for (char c; out.size() < 4096 && read(pipe, &c, 1) == 1 && c != '\n';) out += c;
  return out;
}

}  // namespace

bool is_unserved(const std::string& directory) {
  return directory.empty() || !store_client::is_listened_to(directory + "/store.sock");
}

own_server::own_server(std::string directory, const std::vector<std::string>& more) : directory_(std::move(directory)) {
  if (directory_.empty()) directory_ = temporary_.emplace("store").path();
  tools::check_socket_path(directory_ + "/store.sock");
  std::vector<std::string> words = {"peerlane", "store", "serve",       "--data", directory_,
                                    "--listen", "none",  "--log-level", "warn"};
  words.insert(words.end(), more.begin(), more.end());
  std::vector<char*> arguments;
  for (auto& one : words) arguments.push_back(one.data());
  arguments.push_back(nullptr);
  const std::string program = own_program();
  int line[2];
  if (pipe2(line, O_CLOEXEC) != 0) throw tools::tool_failure("pipe: " + errno_text(errno));
  const pid_t parent = getpid();
  process_ = fork();
  if (process_ == 0) {
    // A killed command leaves no server behind.
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) != 0 || getppid() != parent) _exit(kNotStarted);
    dup2(line[1], STDOUT_FILENO);
    execv(program.c_str(), arguments.data());
    _exit(kNotStarted);
  }
  close(line[1]);
  const std::string said = first_line(line[0]);
  close(line[0]);
  if (said.find("TCP ") != std::string::npos) return;
  int state = 0;
  const bool is_over = waitpid(std::exchange(process_, -1), &state, 0) > 0;
  throw tools::tool_failure(is_over && WIFSIGNALED(state)
                                ? format("the store's server did not start: it ended by signal %d", WTERMSIG(state))
                            : is_over && WEXITSTATUS(state) == kNotStarted
                                ? format("the store's server did not start: %s cannot be executed", program.c_str())
                                : "the store's server did not start; see its message above");
}

pid_t own_server::kill_hard() {
  const pid_t process = process_;
  if (process > 0) {
    kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
    process_ = -1;
  }
  return process;
}

own_server::~own_server() {
  if (process_ > 0) {
    kill(process_, SIGTERM);
    waitpid(process_, nullptr, 0);
  }
}

}  // namespace pl::store_tools
