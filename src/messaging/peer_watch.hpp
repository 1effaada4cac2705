// SPDX-License-Identifier: Apache-2.0
// Collects the peers that have ended, left or violated the protocol, until the progress loop marks them lost.
//
// Owns: the watch over the node's processes, and the list of peers to be marked lost.
// Threads: the messenger's lock guards all calls. check() makes a system call at most every 2 ms.
// Errors: none. A loss is a rank and a message for the user.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "messaging/messenger_context.hpp"
#include "messaging/node.hpp"

namespace pl::messaging {

class peer_watch {
 public:
  explicit peer_watch(messenger_context& context) : context_(context) {}
  // Watches a process of this node, which must be alive.
  void add(int rank, pid_t pid) {
    if (const int fd = deaths_.add(rank, pid); fd >= 0) context_.wake.watch(fd);
  }
  void remove(int rank) { deaths_.remove(rank); }
  // Forgets what was noticed about the rank's old process.
  void forget(int rank) {
    deaths_.remove(rank);
    std::erase_if(lost_, [&](const auto& each) { return each.first == rank; });
    std::erase_if(leaving_, [&](const auto& each) { return each.first == rank; });
  }
  // The rank counts as lost from the next round of progress on.
  void report(int rank, std::string reason) { lost_.emplace_back(rank, std::move(reason)); }
  // The peer has announced that it leaves. It counts as lost when the data that it sent before has been received.
  void report_leaving(int rank);
  // False: the last check of the processes was less than 2 ms ago.
  bool check();
  void check_now() {
    last_check_ns_ = 0;
    check();
  }
  // Readable when a process of this node has ended.
  void add_descriptors(std::vector<int>& out) const { deaths_.add_descriptors(out); }
  // True: the data of a peer that leaves is still awaited, until a deadline.
  bool has_leaving() const noexcept { return !leaving_.empty(); }
  // Whether the peer's process has ended. Its number is not reused between its end and this answer.
  bool has_ended(const peer_state& remote);
  void drop_ended() {
    if (!leaving_.empty()) report_ended();
  }
  bool has_lost() const noexcept { return !lost_.empty(); }
  // The next loss to act on.
  std::pair<int, std::string> take_lost();
  // Notes all peers that have ended; for a process that leaves.
  std::vector<int> collect() { return deaths_.collect(); }

 private:
  void report_ended();
  messenger_context& context_;
  death_watch deaths_;
  std::vector<std::pair<int, std::string>> lost_;
  std::vector<std::pair<int, std::uint64_t>> leaving_;  // rank, and the deadline for its data
  std::uint64_t last_check_ns_ = 0;
};

}  // namespace pl::messaging
