// SPDX-License-Identifier: Apache-2.0
// Keeps the durable puts of runs in order, key by key, on their way to the committer. Otherwise a value that is written
// to extents first could be overtaken by a later one of its key that goes into the log or is written by another thread.
#pragma once

#include <list>
#include <mutex>
#include <string>
#include <unordered_map>

#include "store/engine/commit.hpp"

namespace pl::store {

// Thread-safe.
class key_order {
 public:
  // Returns true if no other unit of the key is on its way: the caller proceeds with this one, and with `is_slow`
  // others of the key wait until leave(). Returns false if the unit has to wait; leave() hands it out later.
  bool enter(unit_ref& unit, bool is_slow) {
    const std::string& full = unit->operations.front().full;
    const std::lock_guard lock(mutex_);
    const auto found = waiting_.find(full);
    if (found == waiting_.end()) {
      unit->is_ordered = is_slow;
      if (is_slow) waiting_.try_emplace(full);
      return true;
    }
    unit->is_ordered = true;
    found->second.push_back(std::move(unit));
    return false;
  }
  // The unit of the key that proceeded is with the committer or has failed. Returns the next one, which proceeds now,
  // or null.
  unit_ref leave(const std::string& full) {
    const std::lock_guard lock(mutex_);
    const auto found = waiting_.find(full);
    if (found->second.empty()) {
      waiting_.erase(found);
      return nullptr;
    }
    unit_ref next = std::move(found->second.front());
    found->second.pop_front();
    return next;
  }

 private:
  std::mutex mutex_;
  // Units behind one that is on its way; empty in most cases.
  std::unordered_map<std::string, std::list<unit_ref>> waiting_;
};

}  // namespace pl::store
