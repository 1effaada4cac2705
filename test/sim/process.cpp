// SPDX-License-Identifier: Apache-2.0
// Tests that need a second driver user start this program again: a forked child has no working driver, by design.
#include <spawn.h>
#include <sys/wait.h>

#include "sim_test.hpp"

extern char** environ;

namespace pl::cu {

int run_in_new_process(const std::string& test, const std::vector<std::string>& environment) {
  std::vector<std::string> arguments = {"/proc/self/exe", "--gtest_filter=" + test, "--gtest_also_run_disabled_tests"};
  std::vector<char*> argv;
  for (auto& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  auto added = environment;
  std::vector<char*> envp;
  for (auto& entry : added) envp.push_back(entry.data());
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string name = std::string(*entry).substr(0, std::string(*entry).find('=') + 1);
    bool is_replaced = false;
    for (const auto& mine : environment) is_replaced |= mine.rfind(name, 0) == 0;
    if (!is_replaced) envp.push_back(*entry);
  }
  envp.push_back(nullptr);
  pid_t child = 0;
  if (posix_spawn(&child, argv[0], nullptr, nullptr, argv.data(), envp.data()) != 0) return -1;
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

}  // namespace pl::cu
