// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p/launch.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/text.hpp"
#include "tools/common/terminal.hpp"
#include "tools/common/tool.hpp"

namespace pl::p2p {
namespace {

constexpr std::size_t kWordsBytes = 2000;
constexpr std::chrono::seconds kTimeout{120};  // a GPU's first context on a busy machine takes a while

}  // namespace

// ---- what the ranks share -----------------------------------------------------------------------------------------------

namespace {

[[noreturn]] void leave_process(int code) {
  std::fflush(stdout);
  std::fflush(stderr);
  _exit(code);  // handlers of the parent's exit are not ours to run
}

}  // namespace

struct fork_world::shared {
  std::atomic<int> failed_rank{-1};
  std::atomic<bool> words_written{false};
  char words[kWordsBytes] = "";
};

fork_world::fork_world(int size) : ways_(tools::must(messaging::fork_bootstrap::make(size))), size_(size) {
  void* memory = mmap(nullptr, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    throw tools::tool_failure("no shared memory for the processes of this run: " + errno_text(errno));
  shared_ = new (memory) shared;
}

fork_world::~fork_world() { munmap(shared_, sizeof(shared)); }

std::unique_ptr<messaging::bootstrap> fork_world::join(int rank) { return ways_.take(rank, kTimeout); }

void fork_world::fail(int rank, const std::string& words) {
  int nobody = -1;
  if (shared_->failed_rank.compare_exchange_strong(nobody, rank)) {
    const std::size_t length = std::min(words.size(), kWordsBytes - 1);
    std::memcpy(shared_->words, words.data(), length);
    shared_->words[length] = '\0';
    shared_->words_written.store(true);
  }
  leave_process(tools::kExitFailed);
}

std::optional<std::string> fork_world::failure_words() const {
  if (!shared_->words_written.load()) return std::nullopt;
  return format("rank %d: %s", shared_->failed_rank.load(), shared_->words);
}

// ---- the processes -------------------------------------------------------------------------------------------------------

namespace {

[[noreturn]] void live_as(fork_world& world, int rank, pid_t parent, const std::function<int(int)>& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(tools::kExitFailed);  // it ended before the line above
  try {
    const int code = body(rank);
    // The parent, which writes nothing, would not notice.
    if (std::fflush(stdout) != 0 || std::ferror(stdout)) world.fail(rank, "standard output cannot be written");
    leave_process(code);
  } catch (const std::exception& failure) { world.fail(rank, failure.what()); }
}

void end_all(const std::vector<pid_t>& children) {
  for (const pid_t child : children)
    if (child > 0) kill(child, SIGKILL);
}

std::string words_about_signal(int rank, int signal) {
  return format("rank %d was ended by signal %d (%s)", rank, signal, strsignal(signal));
}

}  // namespace

void silence_stdout() {
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere < 0) return;
  dup2(nowhere, STDOUT_FILENO);
  close(nowhere);
}

int run_forked(fork_world& world, const std::string& program, const std::function<int(int rank)>& body,
               const std::function<void()>& when_forked) {
  std::fflush(stdout);
  const pid_t parent = getpid();
  std::vector<pid_t> children;
  for (int rank = 0; rank < world.size(); ++rank) {
    const pid_t child = fork();
    if (child == 0) live_as(world, rank, parent, body);
    if (child < 0) {
      end_all(children);
      throw tools::tool_failure("a process for a rank cannot be made: " + errno_text(errno));
    }
    children.push_back(child);
  }
  world.leave();
  if (when_forked) when_forked();
  int code = tools::kExitOk;
  std::string words;
  for (std::size_t left = children.size(); left != 0; --left) {
    int wait_status = 0;
    const pid_t ended = waitpid(-1, &wait_status, 0);
    const auto position = std::find(children.begin(), children.end(), ended);
    if (position == children.end()) break;
    *position = 0;
    const int rank = static_cast<int>(position - children.begin());
    if (words.empty() && WIFSIGNALED(wait_status)) words = words_about_signal(rank, WTERMSIG(wait_status));
    if (auto text = world.failure_words()) words = *text;
    if (WIFEXITED(wait_status)) code = std::max(code, WEXITSTATUS(wait_status));
    if (!words.empty()) end_all(children);
  }
  if (words.empty()) return code;
  std::fprintf(stderr, "%s: %s\n", program.c_str(), tools::without_controls(words).c_str());
  return tools::kExitFailed;
}

}  // namespace pl::p2p
