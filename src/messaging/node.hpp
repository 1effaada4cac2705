// SPDX-License-Identifier: Apache-2.0
// Which processes share this machine, and whether they still live.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "os/device_io.hpp"
#include "os/unique_fd.hpp"

namespace pl::link {

// Equal for two processes that see each other's process numbers.
struct node_identity {
  std::uint64_t boot = 0;           // hash of the kernel's boot id
  std::uint64_t pid_namespace = 0;  // its inode
  std::int32_t pid = 0;

  static node_identity here();
  bool is_same_node(const node_identity& other) const noexcept {
    return boot == other.boot && pid_namespace == other.pid_namespace;
  }
};

// Watches processes of this node through pidfds: a death is seen whatever the process was doing, also before its parent has
// reaped it, and a number that is used again is not mistaken for it.
class death_watch {
 public:
  // The process must be known to live now (it still takes part in opening).
  void add(int rank, pid_t pid);
  void remove(int rank);
  // Ranks that have ended since the last call: one system call for all.
  std::vector<int> look();

 private:
  struct entry {
    int rank;
    unique_fd fd;
  };
  std::vector<entry> watched_;
};

}  // namespace pl::link
