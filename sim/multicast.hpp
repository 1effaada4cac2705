// SPDX-License-Identifier: Apache-2.0
// A multicast object: a team of devices, each with memory bound to the same offsets; a store to a mapping of the object
// reaches the memory of every one.
//
// The team is a memfd with a table that all processes share: which boards are in it, and which memory is bound (as a process
// and the number of its memfd there). So a handle that was exported and imported stands for the same team. Any thread, any
// process; the table is changed by compare-and-swap only, so a process that dies leaves no lock behind.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/kernel_host.hpp"
#include "sim/physical.hpp"

namespace pl::sim {

struct shared_team;  // the memfd's contents

class multicast_team {
 public:
  static std::shared_ptr<multicast_team> create(const multicast_prop& prop);
  // Takes over `fd` if it is a team's; null (and `fd` is still the caller's) if not.
  static std::shared_ptr<multicast_team> adopt(int fd);
  ~multicast_team();
  multicast_team(const multicast_team&) = delete;
  multicast_team& operator=(const multicast_team&) = delete;

  int fd() const { return fd_; }
  int reopen() const;
  std::size_t bytes() const;
  int handle_types() const;
  // Have all devices been added? Real calls that need it wait; here they fail, so that nobody relies on being waited for.
  bool is_complete() const;

  result_t add(const device& member);
  result_t bind(std::size_t offset, const physical_memory& memory, std::size_t memory_offset, std::size_t bytes);
  result_t unbind(const device& member, std::size_t offset, std::size_t bytes);
  // The bytes of every device at [offset, offset + bytes), into `out` (max_multicast_devices entries); how many, or 0 if a
  // device has nothing bound there.
  unsigned replicas(std::size_t offset, std::size_t bytes, void** out);

 private:
  struct view {
    std::size_t offset = 0;  // in the team
    std::size_t bytes = 0;
    std::byte* data = nullptr;
    object_ref keep;
  };
  multicast_team(int fd, shared_team* table) : fd_(fd), table_(table) {}
  void refresh_locked();

  const int fd_;
  shared_team* const table_;
  std::mutex mutex_;                    // guards the rest
  std::map<unsigned, object_ref> own_;  // by place in the table: what this process has bound, kept as long as it is
  std::vector<view> views_;
  std::uint32_t seen_changes_ = 0;
};

}  // namespace pl::sim
