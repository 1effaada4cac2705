// SPDX-License-Identifier: Apache-2.0
// A rank that a launcher has started: meets the others as often as asked, and prints whom it met.
//   launcher_child MEETINGS TIMEOUT_S [ABSENT_RANK [MORE...]]      the absent rank waits and does not come; -1: all come
// MORE: mpi-before, mpi-after: the launcher's MPI (Open MPI, or MPICH) begins in the same process before the meetings or
// behind them. fork: a child of the process ends before the last meeting. early: all but the last rank end at once, which
// works for two more seconds.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "messaging/bootstrap/bootstrap.hpp"

namespace {

using namespace pl::messaging;

// By one write, so that a launcher cannot put another rank's output into the line. An MPI library may have changed stdout.
bool say(const std::string& line) {
  const std::string whole = line + "\n";
  return write(STDOUT_FILENO, whole.data(), whole.size()) == static_cast<ssize_t>(whole.size());
}

int meet_once(int number, unsigned timeout_s) {
  bootstrap_options options;
  options.timeout_s = timeout_s;
  auto group = open_bootstrap(options);
  if (!group) {
    std::fprintf(stderr, "error %d: %s\n", group.code(), group.error().message.c_str());
    return 1;
  }
  const std::string mine = std::to_string((*group)->rank() * 10 + number);
  auto all = (*group)->all_gather(std::as_bytes(std::span(mine)));
  if (!all) return std::fprintf(stderr, "all_gather: %s\n", all.error().message.c_str()), 1;
  std::string line = "met";
  for (const auto& one : *all) line += " " + std::string(reinterpret_cast<const char*>(one.data()), one.size());
  return say(line) ? 0 : 1;
}

bool call_mpi(const char* name, bool has_arguments) {
  const bool is_mpich = read_launcher().name.find("MPICH") != std::string::npos;
  void* const library = dlopen(is_mpich ? "libmpich.so.12" : "libmpi.so.40", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), false;
  void* const found = dlsym(library, name);
  if (found == nullptr) return false;
  return (has_arguments ? reinterpret_cast<int (*)(int*, char***)>(found)(nullptr, nullptr)
                        : reinterpret_cast<int (*)()>(found)()) == 0;
}

bool end_a_child() {
  const pid_t child = fork();
  if (child == 0) std::exit(0);
  int ended = -1;
  return child > 0 && waitpid(child, &ended, 0) == child && ended == 0;
}

}  // namespace

int main(int count, char** words) {
  const int meetings = count > 1 ? std::atoi(words[1]) : 1;
  const auto timeout_s = static_cast<unsigned>(count > 2 ? std::atoi(words[2]) : 30);
  if (count > 3 && read_launcher().rank == std::atoi(words[3])) {
    sleep(timeout_s + 4);
    return 0;
  }
  bool is_before = false, is_after = false, forks = false, is_early = false;
  for (int i = 4; i < count; ++i) {
    const std::string word = words[i];
    is_before |= word == "mpi-before";
    is_after |= word == "mpi-after";
    forks |= word == "fork";
    is_early |= word == "early";
  }
  if (is_before && !call_mpi("MPI_Init", true)) return 2;
  for (int number = 0; number < meetings; ++number) {
    if (forks && number + 1 == meetings && !end_a_child()) return 3;
    if (meet_once(number, timeout_s) != 0) return 1;
  }
  if (is_early && read_launcher().rank + 1 == read_launcher().size) {
    sleep(2);
    if (!say("the last rank has worked on")) return 1;
  }
  if (is_after && !call_mpi("MPI_Init", true)) return 4;
  return (is_before || is_after) && !call_mpi("MPI_Finalize", false) ? 5 : 0;
}
