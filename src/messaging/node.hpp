// SPDX-License-Identifier: Apache-2.0
// Which processes share this node, and which of them have ended.
//
// Owns: a pidfd for each watched process. Threads: the messenger's lock guards a death_watch.
// Errors: none; before Linux 5.3 nothing is watched, and only UCX reports a death.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "os/device_io.hpp"
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

// Watches processes of this node through pidfds. A pidfd reports the end of its process before the parent has reaped it, and
// never refers to a later process with the same number.
class death_watch {
 public:
  // The process must be alive (it still takes part in opening). A descriptor that is readable at its end; -1: there is none.
  int add(int rank, pid_t pid);
  void remove(int rank);
  // Ranks that have ended since the last call: one system call for all.
  std::vector<int> collect();
  // Readable once their process has ended.
  void add_descriptors(std::vector<int>& out) const {
    for (const auto& each : watched_) out.push_back(each.fd.get());
  }

 private:
  struct entry {
    int rank;
    unique_fd fd;
  };
  std::vector<entry> watched_;
};

}  // namespace pl::messaging
