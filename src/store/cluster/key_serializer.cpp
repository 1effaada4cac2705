// SPDX-License-Identifier: Apache-2.0
#include "store/cluster/key_serializer.hpp"

#include <vector>

namespace pl::store_cluster {
namespace {

// A step may leave its turn at once, which calls the next step: run one after the other, not one within the other.
void run(std::vector<key_turns::step> steps) {
  thread_local std::deque<key_turns::step> waiting;
  thread_local bool running = false;
  for (auto& one : steps) waiting.push_back(std::move(one));
  if (running) return;
  running = true;
  while (!waiting.empty()) {
    const key_turns::step now = std::move(waiting.front());
    waiting.pop_front();
    now();
  }
  running = false;
}

}  // namespace

bool key_turns::try_take(const std::string& key) {
  const std::lock_guard hold(lock_);
  return taken_.try_emplace(key).second;
}

void key_turns::take(const std::string& key, step then) {
  {
    const std::lock_guard hold(lock_);
    const auto [at, free] = taken_.try_emplace(key);
    if (!free) {
      at->second.push_back({std::move(then), true});
      return;
    }
  }
  then();
}

void key_turns::behind(const std::string& key, step then) {
  {
    const std::lock_guard hold(lock_);
    if (const auto at = taken_.find(key); at != taken_.end()) {
      at->second.push_back({std::move(then), false});
      return;
    }
  }
  then();
}

void key_turns::leave(const std::string& key) {
  std::vector<step> next;
  {
    const std::lock_guard hold(lock_);
    const auto at = taken_.find(key);
    bool taken = false;
    while (!taken && !at->second.empty()) {
      next.push_back(std::move(at->second.front().then));
      taken = at->second.front().wants_turn;
      at->second.pop_front();
    }
    if (!taken) taken_.erase(at);
  }
  run(std::move(next));
}

}  // namespace pl::store_cluster
