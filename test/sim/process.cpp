// SPDX-License-Identifier: Apache-2.0
#include "test/sim/process.hpp"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

extern char** environ;

namespace pl::cu {

namespace {

std::string own_path() {
  char path[4096] = {};
  return readlink("/proc/self/exe", path, sizeof path - 1) > 0 ? path : "";
}

int run(const std::string& program, const std::string& cases, const std::vector<std::string>& environment) {
  std::vector<std::string> arguments = {program, "--gtest_filter=" + cases, "--gtest_brief=1"};
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

}  // namespace

int run_self(const std::string& cases, const std::vector<std::string>& environment) {
  return run(own_path(), cases, environment);
}

int run_child(const std::string& cases, const std::vector<std::string>& environment) {
  const std::string own = own_path();
  return run(own.substr(0, own.rfind('/') + 1) + "sim_test_child", cases, environment);
}

std::string to_hex(const void* data, std::size_t bytes) {
  std::string text;
  char two[3];
  for (std::size_t i = 0; i < bytes; ++i) {
    std::snprintf(two, sizeof two, "%02x", static_cast<const unsigned char*>(data)[i]);
    text += two;
  }
  return text;
}

void from_hex(const char* text, void* data, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) {
    const std::string two(text + 2 * i, 2);
    static_cast<unsigned char*>(data)[i] = static_cast<unsigned char>(std::strtoul(two.c_str(), nullptr, 16));
  }
}

int in_forked_child(int (*body)()) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace pl::cu
