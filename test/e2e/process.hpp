// SPDX-License-Identifier: Apache-2.0
// Real processes for tests over the shared library and the simulated GPU: children that answer with a number, and one whole
// life of a mapping.
#pragma once

#include <gdrapi.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>

#include "test/support/sim_fixture.hpp"

namespace pl::test {

constexpr int kKilled = 1000;  // + the signal's number

inline int exit_of(pid_t child) {
  int status = 0;
  if (waitpid(child, &status, 0) != child) return -1;
  return WIFSIGNALED(status) ? kKilled + WTERMSIG(status) : WEXITSTATUS(status);
}

// Runs `body` in a forked child; its return value is the answer, a signal is kKilled + number.
template <class Body>
int in_child(Body body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);  // sanitizers would turn the signal into an exit status
    _exit(body());
  }
  return exit_of(child);
}

// Pin, map, write, compare with CUDA, read back, unmap, unpin. 0, or the number of the step that failed.
inline int whole_life(gdr_t g, std::uint64_t device, std::size_t bytes, std::uint64_t seed) {
  gdr_mh_t handle{};
  void* va = nullptr;
  if (gdr_pin_buffer(g, device, bytes, 0, 0, &handle) != 0) return 1;
  if (gdr_map(g, handle, &va, bytes) != 0) return 2;
  const auto written = random_bytes(256, seed);
  std::vector<unsigned char> seen(256);
  if (gdr_copy_to_mapping(handle, va, written.data(), 256) != 0) return 3;
  if (simulated_cuda().cuMemcpyDtoH_v2(seen.data(), device, 256) != 0 || seen != written) return 4;
  std::fill(seen.begin(), seen.end(), static_cast<unsigned char>(0));
  if (gdr_copy_from_mapping(handle, seen.data(), va, 256) != 0 || seen != written) return 5;
  gdr_info_t info;
  if (gdr_get_info(g, handle, &info) != 0 || info.mapped != 1) return 6;
  if (gdr_unmap(g, handle, va, bytes) != 0) return 7;
  return gdr_unpin_buffer(g, handle) == 0 ? 0 : 8;
}

}  // namespace pl::test
