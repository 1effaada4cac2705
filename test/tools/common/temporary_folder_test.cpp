// SPDX-License-Identifier: Apache-2.0
// The helper that deletes a killed command's folder may be gone, or may never have been.
#include "tools/common/temporary_folder.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

namespace pl::tools {
namespace {

// The exit code of a child that makes and leaves a folder.
int life_of_a_folder(const std::function<void()>& before, const std::function<void()>& inside) {
  const pid_t child = fork();
  if (child == 0) {
    before();
    std::string path;
    {
      const temporary_folder made("test", "", temporary_folder::when_killed::deleted);
      path = made.path();
      inside();
    }
    _exit(std::filesystem::exists(path) ? 1 : 0);
  }
  int state = 0;
  waitpid(child, &state, 0);
  return state;
}

TEST(temporary_folder, ends_well_without_its_remover) {
  EXPECT_EQ(life_of_a_folder([] {},
                             [] {
                               std::ifstream list("/proc/self/task/" + std::to_string(getpid()) + "/children");
                               pid_t remover = -1;
                               if (!(list >> remover)) _exit(2);
                               kill(remover, SIGKILL);
                               siginfo_t ended{};
                               waitid(P_PID, static_cast<id_t>(remover), &ended, WEXITED | WNOWAIT);
                             }),
            0);
}

TEST(temporary_folder, ends_well_where_no_process_can_be_started) {
  const auto forbid = [] {
    constexpr rlimit kNone{1, 1};
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) _exit(3);
    setrlimit(RLIMIT_NPROC, &kNone);
    if (fork() >= 0) _exit(0);  // the limit does not hold here
  };
  EXPECT_EQ(life_of_a_folder(forbid, [] {}), 0);
}

}  // namespace
}  // namespace pl::tools
