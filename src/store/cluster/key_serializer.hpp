// SPDX-License-Identifier: Apache-2.0
// One after the other, by key: puts and erases of a key wait for the one before to be on all its copies. Those of different
// keys know nothing of each other. Thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>

namespace pl::store_cluster {

class key_turns {
 public:
  using step = std::function<void()>;

  // True: the turn is the caller's, until it leaves.
  bool try_take(const std::string& key);
  // `then` has the turn when it is called, here and now if nobody else has it, else by whoever leaves.
  void take(const std::string& key, step then);
  // Calls `then` without a turn, once those have left that have or wait for one now.
  void behind(const std::string& key, step then);
  void leave(const std::string& key);

 private:
  struct waiter {
    step then;
    bool wants_turn = true;
  };
  // Taken keys, and who waits.
  std::unordered_map<std::string, std::deque<waiter>> taken_;
  std::mutex lock_;
};

}  // namespace pl::store_cluster
