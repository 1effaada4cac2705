// SPDX-License-Identifier: Apache-2.0
// Serializes changes by key: a put or erase waits until the previous change of the same key is on all copies. Changes
// of different keys are independent. Thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>

namespace pl::store_cluster {

class key_serializer {
 public:
  using step = std::function<void()>;

  // Returns true if the caller now holds the key, until leave().
  bool try_take(const std::string& key);
  // Calls `next_step` with the key taken: in this call if the key is free, otherwise from leave().
  void take(const std::string& key, step next_step);
  // Calls `next_step` without taking the key, after everyone who now holds it or waits for it has left.
  void behind(const std::string& key, step next_step);
  void leave(const std::string& key);
  // Whether nobody holds the key now.
  bool is_free(const std::string& key);

 private:
  struct waiter {
    step next_step;
    bool wants_turn = true;
  };
  // Taken keys and their waiters.
  std::unordered_map<std::string, std::deque<waiter>> taken_;
  std::mutex lock_;
};

}  // namespace pl::store_cluster
