// SPDX-License-Identifier: Apache-2.0
// A client or a server that can be killed without the test.
#pragma once

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>

namespace pl::store_test {

// This program again, running one test that is off otherwise; PEERLANE_STORE says about which store.
class other_process {
 public:
  other_process(const std::string& test, const std::string& about) {
    setenv("PEERLANE_STORE", about.c_str(), 1);
    std::string filter = "--gtest_filter=" + test, also = "--gtest_also_run_disabled_tests";
    std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
    char* arguments[] = {self.data(), filter.data(), also.data(), nullptr};
    EXPECT_EQ(posix_spawn(&pid_, self.c_str(), nullptr, nullptr, arguments, environ), 0);
    unsetenv("PEERLANE_STORE");
  }
  other_process(const other_process&) = delete;
  other_process& operator=(const other_process&) = delete;
  ~other_process() { end(SIGKILL); }
  void end(int signal_number) {
    if (pid_ <= 0) return;
    kill(pid_, signal_number);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
  }
  void send(int signal_number) const { kill(pid_, signal_number); }

 private:
  pid_t pid_ = 0;
};

}  // namespace pl::store_test
