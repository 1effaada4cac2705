// SPDX-License-Identifier: Apache-2.0
#include "store/cluster/key_serializer.hpp"

#include <vector>

namespace pl::store_cluster {
namespace {

// Runs steps one after the other. A step may end at once, and would otherwise call the next one recursively.
void run(std::vector<key_serializer::step> steps) {
  thread_local std::deque<key_serializer::step> waiting;
  thread_local bool running = false;
  for (auto& one : steps) waiting.push_back(std::move(one));
  if (running) return;
  running = true;
  while (!waiting.empty()) {
    const key_serializer::step now = std::move(waiting.front());
    waiting.pop_front();
    now();
  }
  running = false;
}

}  // namespace

bool key_serializer::try_take(const std::string& key) {
  const std::lock_guard hold(lock_);
  return taken_.try_emplace(key).second;
}

void key_serializer::take(const std::string& key, step next_step) {
  {
    const std::lock_guard hold(lock_);
    const auto [entry, free] = taken_.try_emplace(key);
    if (!free) {
      entry->second.push_back({std::move(next_step), true});
      return;
    }
  }
  next_step();
}

void key_serializer::behind(const std::string& key, step next_step) {
  {
    const std::lock_guard hold(lock_);
    if (const auto found = taken_.find(key); found != taken_.end()) {
      found->second.push_back({std::move(next_step), false});
      return;
    }
  }
  next_step();
}

void key_serializer::leave(const std::string& key) {
  std::vector<step> next;
  {
    const std::lock_guard hold(lock_);
    const auto found = taken_.find(key);
    bool taken = false;
    while (!taken && !found->second.empty()) {
      next.push_back(std::move(found->second.front().next_step));
      taken = found->second.front().wants_turn;
      found->second.pop_front();
    }
    if (!taken) taken_.erase(found);
  }
  run(std::move(next));
}

bool key_serializer::is_free(const std::string& key) {
  const std::lock_guard hold(lock_);
  return !taken_.contains(key);
}

}  // namespace pl::store_cluster
