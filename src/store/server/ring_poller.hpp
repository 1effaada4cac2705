// SPDX-License-Identifier: Apache-2.0
// Polls the connections of one thread whose bytes go through shared memory rings (byte_ring.hpp). The event loop does
// not see these, so the thread polls each in rotation and requests a notification before it sleeps.
//
// Used by that thread alone. Must outlive the connections in it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace pl::store_server {

class ring_poller {
 public:
  class member {
   public:
    virtual ~member() = default;
    // Calls the handlers of finished operations and returns their number.
    virtual std::size_t poll() = 0;
    // Requests a notification. Returns false if there is work already.
    virtual bool arm() = 0;
    virtual void disarm() = 0;
  };

  // Polling a member costs a cache line from another CPU. With more members than this, sockets are as fast.
  static constexpr std::size_t kMaxMembers = 64;

  bool is_full() const noexcept { return members_.size() >= kMaxMembers; }
  bool is_empty() const noexcept { return members_.empty(); }
  void add(member* one) { members_.push_back(one); }
  // May be called from within a handler.
  void remove(member* one) noexcept { std::replace(members_.begin(), members_.end(), one, static_cast<member*>(nullptr)); }

  std::size_t poll() {
    std::size_t did = 0;
    bool has_gone = false;
    // Iterates by index, because handlers open and close connections.
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (members_[i] != nullptr) did += members_[i]->poll();
      has_gone = has_gone || members_[i] == nullptr;
    }
    if (has_gone) std::erase(members_, nullptr);
    return did;
  }
  bool arm() {
    return std::all_of(members_.begin(), members_.end(), [](member* one) { return one == nullptr || one->arm(); });
  }
  void disarm() {
    for (auto* const one : members_)
      if (one != nullptr) one->disarm();
  }

 private:
  std::vector<member*> members_;  // null: removed
};

}  // namespace pl::store_server
