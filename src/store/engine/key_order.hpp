// SPDX-License-Identifier: Apache-2.0
// Durable puts of runs reach the committer in the order in which they came, key by key: a value that is written to extents
// first would otherwise be overtaken by a later one of its key, which goes into the log or is written by another thread.
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
  // True: none of the key is on its way, and the caller goes on with this one; `is_slow`: others of the key wait until
  // leave(). False: it waits itself, and leave() returns it.
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
  // The one of the key that went on is with the committer, or has failed. The next one, which goes on now, or null.
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
  std::unordered_map<std::string, std::list<unit_ref>> waiting_;  // behind one that is on its way; mostly none
};

}  // namespace pl::store
