// SPDX-License-Identifier: Apache-2.0
// A job of forked processes that know the public headers alone; they meet through a folder.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <peerlane/communicator.hpp>
#include <string>
#include <vector>

#define CHECK(condition)                                                                                               \
  do {                                                                                                                 \
    if (!(condition))                                                                                                  \
      return std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, peerlane_last_error()), __LINE__; \
  } while (0)

namespace peerlane::test {

inline constexpr std::chrono::milliseconds patience{20'000};

// `body(rank, folder)` in `size` processes that may meet in `folder`; how many of them did not return 0.
inline int fork_ranks(int size, const std::function<int(int, const std::string&)>& body) {
  static int jobs = 0;
  const auto folder =
      std::filesystem::temp_directory_path() / ("peerlane-api." + std::to_string(getpid()) + "." + std::to_string(jobs++));
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      _exit(body(rank, "file:" + folder.string()) == 0 ? 0 : 1);
    }
    children.push_back(child);
  }
  int failures = 0;
  for (const pid_t child : children) {
    int status = -1;
    if (waitpid(child, &status, 0) != child || status != 0) ++failures;
  }
  std::filesystem::remove_all(folder);
  return failures;
}

// `body(job)` in `size` processes; how many of them did not return 0.
inline int run_job(int size, const std::function<int(communicator&)>& body,
                   const std::function<void(peerlane_comm_options&)>& adjust = {}) {
  return fork_ranks(size, [&](int rank, const std::string& rendezvous) {
    auto options = communicator::options();
    options.rendezvous = rendezvous.c_str();
    options.rank = rank;
    options.size = size;
    if (adjust) adjust(options);
    auto job = communicator::open(&options);
    if (!job) std::fprintf(stderr, "rank %d: %s\n", rank, job.error().message.c_str());
    return job ? body(*job) : 1;
  });
}

}  // namespace peerlane::test
