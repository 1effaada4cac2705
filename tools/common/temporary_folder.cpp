// SPDX-License-Identifier: Apache-2.0
#include "tools/common/temporary_folder.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/text.hpp"
#include "tools/common/tool.hpp"

namespace pl::tools {

namespace fs = std::filesystem;

std::string temporary_parent() {
  std::error_code problem;
  const fs::path found = fs::temp_directory_path(problem);
  if (problem)
    throw tool_failure("no folder for temporary files (" + problem.message() +
                       "): let TMPDIR name one, or unset it for /tmp");
  return found.string();
}

void check_socket_path(const std::string& path) {
  constexpr std::size_t kMaxPath = sizeof(sockaddr_un::sun_path) - 1;
  if (path.size() > kMaxPath)
    throw tool_failure(
        format("%s is longer than the %zu bytes of a socket's path: name a folder with a shorter one (TMPDIR "
               "or the option, --data or --folder)",
               path.c_str(), kMaxPath));
}

namespace {

// A line tells it that the folder is no longer its business. Otherwise the connection ends with the process; a server
// of that process may still write there for a moment.
constexpr const char* kRemover =
    "read -r line && exit 0; for pause in 0 1 3; do sleep $pause; rm -rf -- \"$1\" && exit 0; done";

// It makes the folder itself, outside the process group already, and says its name: however early ^C or a kill ends the
// command, somebody is left who knows of the folder.
[[noreturn]] void become_remover(int end, std::string path) {
  setsid();
  if (mkdtemp(path.data()) == nullptr) _exit(1);
  if (send(end, path.data(), path.size(), MSG_NOSIGNAL) < 0) {
    rmdir(path.c_str());
    _exit(1);
  }
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  dup2(end, STDIN_FILENO);
  for (const int each : {STDOUT_FILENO, STDERR_FILENO}) dup2(null, each);
  execl("/bin/sh", "sh", "-c", kRemover, "sh", path.c_str(), nullptr);
  _exit(127);
}

}  // namespace

// Where it cannot be started the folder stays after a kill.
bool temporary_folder::start_remover() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return false;
  remover_ = fork();
  if (remover_ == 0) {
    close(ends[1]);
    become_remover(ends[0], path_);
  }
  close(ends[0]);
  std::string made(path_.size() + 1, '\0');
  ssize_t got = -1;
  while (remover_ > 0 && (got = recv(ends[1], made.data(), made.size(), 0)) < 0 && errno == EINTR) {}
  if (got == static_cast<ssize_t>(path_.size())) {
    path_.assign(made, 0, path_.size());
    remover_end_ = ends[1];
    return true;
  }
  close(ends[1]);
  if (remover_ > 0) waitpid(remover_, nullptr, 0);
  remover_ = -1;
  return false;
}

temporary_folder::temporary_folder(const std::string& name, const std::string& parent, when_killed fate)
    : path_((fs::path(parent.empty() ? temporary_parent() : parent) / ("peerlane-" + name + "-XXXXXX")).string()) {
  if (fate == when_killed::deleted && start_remover()) return;
  if (mkdtemp(path_.data()) != nullptr) return;
  const std::string reason = errno_text(errno);
  throw tool_failure(format("%s cannot be made: %s; name a folder that can be written (%s)", path_.c_str(), reason.c_str(),
                            parent.empty() ? "let TMPDIR name one" : "the option's"));
}

temporary_folder::~temporary_folder() {
  std::error_code ignored;
  if (!is_kept_) fs::remove_all(path_, ignored);
  if (remover_end_ < 0) return;
  // Somebody may have killed it, or there was no process for it: no SIGPIPE.
  [[maybe_unused]] const auto wrote = send(remover_end_, "\n", 1, MSG_NOSIGNAL);
  close(remover_end_);
  if (remover_ > 0) waitpid(remover_, nullptr, 0);
}

}  // namespace pl::tools
