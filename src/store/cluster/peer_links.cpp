// SPDX-License-Identifier: Apache-2.0
#include "store/cluster/peer_links.hpp"

#include <algorithm>

namespace pl::store_cluster {

peer_links::peer_links(store_client::address security, unsigned timeout_ms)
    : security_(std::move(security)), timeout_ms_(timeout_ms) {}

void peer_links::stop() {
  {
    const std::lock_guard hold(lock_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (auto& [name, one] : workers_)
    if (one.thread.joinable()) one.thread.join();
  std::vector<job> left;
  std::map<peer_name, link> links;
  std::vector<std::shared_ptr<store_client::client>> forgotten;
  {
    const std::lock_guard hold(lock_);
    for (auto& [name, one] : workers_)
      for (job& waiting : one.jobs) left.push_back(std::move(waiting));
    workers_.clear();
    links.swap(links_);
    forgotten.swap(forgotten_);
  }
  for (const job& one : left) one.then(failure{ESHUTDOWN, "the server is going down"});
}

void peer_links::reach(const peer_name& who, const std::string& pool, use then) {
  peer_pool found;
  bool queued = false;
  {
    const std::lock_guard hold(lock_);
    if (const auto at = links_.find(who); !stopping_ && at != links_.end() && at->second.to)
      if (const auto known = at->second.pools.find(pool); known != at->second.pools.end())
        found = {at->second.to, known->second};
    if (!found.to && !stopping_) {
      auto& mine = workers_[who.name];
      mine.jobs.push_back({who, pool, std::move(then)});
      queued = true;
      if (!mine.thread.joinable()) mine.thread = std::thread([this, name = who.name] { serve(name); });
    }
  }
  if (found.to) return then(found);
  if (queued) return changed_.notify_all();
  then(failure{ESHUTDOWN, "the server is going down"});
}

void peer_links::forget(const peer_name& who) {
  const std::lock_guard hold(lock_);
  const auto at = links_.find(who);
  if (at == links_.end()) return;
  if (at->second.to) forgotten_.push_back(std::move(at->second.to));
  links_.erase(at);
}

void peer_links::serve(const std::string& name) {
  std::unique_lock hold(lock_);
  auto& mine = workers_[name];
  for (;;) {
    changed_.wait(hold, [&] { return stopping_ || !mine.jobs.empty(); });
    if (stopping_) return;
    const job now = std::move(mine.jobs.front());
    mine.jobs.pop_front();
    // Whoever used one of these has ended by now, or ends with it.
    std::vector<std::shared_ptr<store_client::client>> gone;
    const auto unused =
        std::partition(forgotten_.begin(), forgotten_.end(), [](const auto& one) { return one.use_count() > 1; });
    std::move(unused, forgotten_.end(), std::back_inserter(gone));
    forgotten_.erase(unused, forgotten_.end());
    hold.unlock();
    gone.clear();
    now.then(connect(now.who, now.pool));
    hold.lock();
  }
}

result<peer_pool> peer_links::connect(const peer_name& who, const std::string& pool) {
  std::shared_ptr<store_client::client> to;
  {
    const std::lock_guard hold(lock_);
    auto& at = links_[who];
    if (const auto known = at.pools.find(pool); known != at.pools.end() && at.to) return peer_pool{at.to, known->second};
    to = at.to;
  }
  if (!to) {
    store_client::client_options how;
    how.where = security_;
    how.where.socket.clear();
    how.where.endpoint = who.endpoint;
    how.timeout_ms = timeout_ms_;
    how.use_shm = false;
    how.ucx = store_client::lane_mode::off;  // what is said of copies goes with frames
    how.reconnect = false;
    how.spin_us = 0;
    auto made = store_client::client::open(how);
    if (!made) return made.error();
    to = *std::move(made);
  }
  peer_pool out{to, 0};
  if (!pool.empty()) {
    const auto opened = to->open_pool(pool);
    if (!opened) return opened.error();
    out.pool = *opened;
  }
  const std::lock_guard hold(lock_);
  if (stopping_) return failure{ESHUTDOWN, "the server is going down"};
  for (auto next = links_.begin(); next != links_.end();) {  // of earlier runs of the same server
    const auto old = next++;
    if (old->first.name != who.name || old->first == who) continue;
    if (old->second.to) forgotten_.push_back(std::move(old->second.to));
    links_.erase(old);
  }
  auto& at = links_[who];
  if (at.to != to) at.pools.clear();
  at.to = to;
  at.pools[pool] = out.pool;
  return out;
}

}  // namespace pl::store_cluster
