// SPDX-License-Identifier: Apache-2.0
#include "store/cluster/peer_links.hpp"

#include <algorithm>

#include "os/blocked_signals.hpp"

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
  for (const job& one : left) one.callback(failure{ESHUTDOWN, "the server is going down"});
}

void peer_links::reach(const peer_name& peer, const std::string& pool, use callback) {
  peer_pool found;
  failure refused{ESHUTDOWN, "the server is going down"};
  bool queued = false;
  {
    const std::lock_guard hold(lock_);
    if (const auto position = links_.find(peer); !stopping_ && position != links_.end() && position->second.connection)
      if (const auto known = position->second.pools.find(pool); known != position->second.pools.end())
        found = {position->second.connection, known->second};
    if (!found.connection && !stopping_) {
      auto& mine = workers_[peer.name];
      if (auto started = start(mine, peer.name)) {
        mine.jobs.push_back({peer, pool, std::move(callback)});
        queued = true;
      } else {
        refused = started.error();
      }
    }
  }
  if (found.connection) return callback(found);
  if (queued) return changed_.notify_all();
  callback(refused);
}

// Precondition: the lock is held.
status peer_links::start(worker& one, const std::string& name) {
  if (one.thread.joinable()) return {};
  auto started = try_start_thread("connects to another server", [this, name] { serve(name); });
  if (!started) return started.error();
  one.thread = *std::move(started);
  return {};
}

void peer_links::forget(const peer_name& peer) {
  const std::lock_guard hold(lock_);
  const auto found = links_.find(peer);
  if (found == links_.end()) return;
  if (found->second.connection) forgotten_.push_back(std::move(found->second.connection));
  links_.erase(found);
}

void peer_links::serve(const std::string& name) {
  std::unique_lock hold(lock_);
  auto& mine = workers_[name];
  for (;;) {
    changed_.wait(hold, [&] { return stopping_ || !mine.jobs.empty(); });
    if (stopping_) return;
    const job now = std::move(mine.jobs.front());
    mine.jobs.pop_front();
    // Users of these clients have ended, or end with them.
    std::vector<std::shared_ptr<store_client::client>> gone;
    const auto unused =
        std::partition(forgotten_.begin(), forgotten_.end(), [](const auto& one) { return one.use_count() > 1; });
    std::move(unused, forgotten_.end(), std::back_inserter(gone));
    forgotten_.erase(unused, forgotten_.end());
    hold.unlock();
    gone.clear();
    now.callback(connect(now.peer, now.pool));
    hold.lock();
  }
}

result<peer_pool> peer_links::connect(const peer_name& peer, const std::string& pool) {
  std::shared_ptr<store_client::client> connection;
  {
    const std::lock_guard hold(lock_);
    auto& entry = links_[peer];
    if (const auto known = entry.pools.find(pool); known != entry.pools.end() && entry.connection)
      return peer_pool{entry.connection, known->second};
    connection = entry.connection;
  }
  if (!connection) {
    store_client::client_options options;
    options.server = security_;
    options.server.socket.clear();
    options.server.endpoint = peer.endpoint;
    options.timeout_ms = timeout_ms_;
    options.use_shm = false;
    options.ucx = store_client::ucx_mode::off;  // messages about copies use frames
    options.reconnect = false;
    options.spin_us = 0;
    auto made = store_client::client::open(options);
    if (!made) return made.error();
    connection = *std::move(made);
  }
  peer_pool out{connection, 0};
  if (!pool.empty()) {
    const auto opened = connection->open_pool(pool);
    if (!opened) return opened.error();
    out.pool = *opened;
  }
  const std::lock_guard hold(lock_);
  if (stopping_) return failure{ESHUTDOWN, "the server is going down"};
  for (auto next = links_.begin(); next != links_.end();) {  // of earlier runs of the same server
    const auto old = next++;
    if (old->first.name != peer.name || old->first == peer) continue;
    if (old->second.connection) forgotten_.push_back(std::move(old->second.connection));
    links_.erase(old);
  }
  auto& entry = links_[peer];
  if (entry.connection != connection) entry.pools.clear();
  entry.connection = connection;
  entry.pools[pool] = out.pool;
  return out;
}

}  // namespace pl::store_cluster
