// SPDX-License-Identifier: Apache-2.0
// A real etcd of the test's own: a process on ports that are free, with a folder of its own.
#pragma once

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "store/cluster/etcd.hpp"
#include "test/support/reserved_port.hpp"

namespace pl::store_test {

constexpr const char* kEtcd = "/usr/bin/etcd";
constexpr const char* kNoEtcd = "/usr/bin/etcd is missing: apt-get install etcd-server";
inline bool etcd_is_there() { return access(kEtcd, X_OK) == 0; }

// A process of the test's: dies with it.
class child_process {
 public:
  // `before`: in the child, before it becomes the program. Output goes to `log`.
  child_process(std::vector<std::string> arguments, const std::string& log, const std::function<void()>& before = nullptr) {
    std::vector<char*> raw;
    for (auto& one : arguments) raw.push_back(one.data());
    raw.push_back(nullptr);
    pid_ = fork();
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    dup2(out, 1);
    dup2(out, 2);
    if (before) before();
    close_range(3, ~0u, 0);  // listeners of servers in the test's process among them
    execv(raw[0], raw.data());
    _exit(127);
  }
  ~child_process() { end(SIGKILL); }
  child_process(const child_process&) = delete;
  child_process& operator=(const child_process&) = delete;
  pid_t pid() const { return pid_; }
  void signal(int number) const { kill(pid_, number); }
  // And waits. The exit code, or -1 where a signal ended it.
  int end(int number) {
    if (pid_ <= 0) return -1;
    kill(pid_, number);
    kill(pid_, SIGCONT);
    int state = 0;
    waitpid(std::exchange(pid_, -1), &state, 0);
    return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
  }

 private:
  pid_t pid_ = -1;
};

class etcd_process {
 public:
  // Precondition: etcd_is_there().
  explicit etcd_process(const std::string& folder, const std::string& host = "127.0.0.1",
                        const std::function<void()>& before = nullptr)
      : url_("http://" + host + ":" + client_port_.text()),
        peers_("http://" + host + ":" + peer_port_.text()),
        folder_(folder) {
    start(before);
  }
  std::string data() const { return folder_ + "/etcd"; }
  // With what is in its folder, which somebody may have changed between.
  void stop() { process_.reset(); }
  void start(const std::function<void()>& before = nullptr) {
    process_ = std::make_unique<child_process>(
        std::vector<std::string>{kEtcd, "--data-dir", data(), "--listen-client-urls", url_, "--advertise-client-urls", url_,
                                 "--listen-peer-urls", peers_, "--initial-advertise-peer-urls", peers_, "--initial-cluster",
                                 "default=" + peers_},
        folder_ + "/etcd.log", before);
  }
  const std::string& url() const { return url_; }
  child_process& process() { return *process_; }
  store_cluster::etcd client() const { return *store_cluster::etcd::connect({url_}, std::chrono::milliseconds(2000)); }
  // False: it does not answer.
  bool wait_until_it_answers() const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    const auto connected = client();
    while (std::chrono::steady_clock::now() < deadline) {
      if (connected.list("/x/")) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return false;
  }

 private:
  const test::reserved_port client_port_, peer_port_;
  std::string url_, peers_, folder_;
  std::unique_ptr<child_process> process_;
};

}  // namespace pl::store_test
