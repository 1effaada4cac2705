// SPDX-License-Identifier: Apache-2.0
// How the processes of a run come about.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "messaging/bootstrap/local_bootstrap.hpp"

namespace pl::p2p {

struct rank_place {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
};

// What forked ranks share: how they find each other, and where the words of a failure lie.
class fork_world {
 public:
  explicit fork_world(int size);
  ~fork_world();
  fork_world(const fork_world&) = delete;
  fork_world& operator=(const fork_world&) = delete;

  int size() const { return size_; }
  std::unique_ptr<messaging::bootstrap> join(int rank);  // in the child, once
  void leave() { ways_.close(); }                        // in the parent, after the forks

  // Ends this process, a rank that has failed; the first one's message is reported. Call it before anything of the rank
  // is taken down, because what the others would report of that is not the cause.
  [[noreturn]] void fail(int rank, const std::string& words);
  std::optional<std::string> failure_words() const;  // "rank 1: ..."

 private:
  struct shared;
  shared* shared_;
  messaging::fork_bootstrap ways_;
  int size_;
};

// For ranks other than 0, which speaks: the notes and headers of the others would stand between its lines.
void silence_stdout();

// Runs `body(rank)` in `world.size()` child processes and returns the exit code: the highest of theirs, or 1 with the words
// of the rank that failed on stderr, after the others were ended. The children end with this process. `when_forked` runs in
// this process once the last child exists. Must be called before CUDA or UCX is touched and by a process of one thread:
// neither survives a fork, nor does a lock that another thread holds, be it the allocator's. Threads are for `when_forked`.
int run_forked(fork_world& world, const std::string& program, const std::function<int(int rank)>& body,
               const std::function<void()>& when_forked = {});

}  // namespace pl::p2p
