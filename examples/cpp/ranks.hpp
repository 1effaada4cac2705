// SPDX-License-Identifier: Apache-2.0
// Two ranks of one job: this process and a child that is forked here, or as a launcher says (mpirun, srun, PEERLANE_LINK_*
// variables).
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <peerlane/communicator.hpp>
#include <string>

namespace example {

// `run(rank options)` in each process; 0 if it returned 0 in all of them.
template <class Run>
int run_two_ranks(bool is_launched, Run&& run) {
  auto options = peerlane::communicator::options();
  if (is_launched) return run(options);
  // Fork first: CUDA and Peerlane belong to the process that opened them.
  const auto folder = std::filesystem::temp_directory_path() / ("peerlane-example." + std::to_string(getpid()));
  const std::string meeting = "file:" + folder.string();
  const pid_t child = fork();
  options.rendezvous = meeting.c_str();
  options.rank = child == 0 ? 1 : 0;
  options.size = 2;
  const int code = run(options);
  if (child == 0) std::_Exit(code);
  int status = 1;
  waitpid(child, &status, 0);
  std::filesystem::remove_all(folder);
  return code != 0 ? code : (status == 0 ? 0 : 1);
}

}  // namespace example
