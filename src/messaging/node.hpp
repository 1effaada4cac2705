// SPDX-License-Identifier: Apache-2.0
// Which processes share this node, and which of them have ended.
//
// Owns: a pidfd for each watched process, or a clock that makes waiters look where the kernel gives none. Threads: the
// messenger's lock guards a death_watch.
// Errors: none.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "os/process_end.hpp"
#include "os/unique_fd.hpp"

namespace pl::messaging {

// Equal for two processes that see each other's process numbers.
struct node_identity {
  std::uint64_t boot = 0;           // hash of the kernel's boot id
  std::uint64_t pid_namespace = 0;  // its inode
  std::int32_t pid = 0;

  static node_identity current();
  bool is_same_node(const node_identity& other) const noexcept {
    return boot == other.boot && pid_namespace == other.pid_namespace;
  }
};

// Watches processes of this node (os/process_end.hpp).
class death_watch {
 public:
  // A descriptor that is readable at its end, or whenever somebody should look; -1: there is none.
  int add(int rank, pid_t pid);
  void remove(int rank);
  // Ranks that have ended since the last call: one system call for all that have a pidfd.
  std::vector<int> collect();
  // Readable once their process has ended, or whenever somebody should look.
  void add_descriptors(std::vector<int>& out) const;

 private:
  struct entry {
    int rank;
    process_end end;
  };
  int clock();
  std::vector<entry> watched_;
  unique_fd clock_;  // of processes without a pidfd
};

}  // namespace pl::messaging
