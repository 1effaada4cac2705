// SPDX-License-Identifier: Apache-2.0
// Finds out which processes are on this node, and which of them have ended.
//
// Owns: a pidfd for each watched process; without pidfds in the kernel, a timer that makes waiting threads check. Threads:
// the messenger's lock guards a death_watch. Errors: none.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "os/process_end.hpp"
#include "os/unique_fd.hpp"

namespace pl::messaging {

// Identifies a node: two processes are on the same node if they can see each other's process ids.
struct node_identity {
  std::uint64_t boot = 0;           // hash of the kernel's boot id
  std::uint64_t pid_namespace = 0;  // inode of the PID namespace
  std::int32_t pid = 0;

  static node_identity current();
  bool is_same_node(const node_identity& other) const noexcept {
    return boot == other.boot && pid_namespace == other.pid_namespace;
  }
};

// Watches processes of this node (os/process_end.hpp).
class death_watch {
 public:
  // Starts to watch a process. Returns a descriptor that becomes readable when the process ends, or periodically, when
  // collect() must be called; -1: there is none.
  int add(int rank, pid_t pid);
  void remove(int rank);
  // Returns the ranks that have ended since the last call. One system call for all processes with a pidfd.
  std::vector<int> collect();
  // Appends the descriptors that add() has returned.
  void add_descriptors(std::vector<int>& out) const;

 private:
  struct entry {
    int rank;
    process_end end;
  };
  int clock();
  std::vector<entry> watched_;
  unique_fd clock_;  // for processes without a pidfd
};

}  // namespace pl::messaging
